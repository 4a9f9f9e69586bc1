"""From a request's words to a constraint."""

from __future__ import annotations

import json

from kinetic.errors import UsageError
from kinetic.text.grammar.matcher import GrammarConstraint
from kinetic.text.grammar.schema import prepared
from kinetic.text.grammar.vocabulary import GrammarVocabulary

# Without a bound a model can write white space for ever.
_SPACE = r"[ \n\t]{0,20}"


def json_value(vocabulary: GrammarVocabulary) -> GrammarConstraint:
    """Any JSON value."""
    return json_schema(vocabulary, True)


def json_schema(vocabulary: GrammarVocabulary, schema: object) -> GrammarConstraint:
    """JSON that matches a schema.

    *Raises*: UsageError for a schema that cannot be enforced.
    """
    ready = prepared(schema)
    tokens = vocabulary.get()
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps({} if ready is True else ready), overrides={"whitespace_pattern": _SPACE}
        )
        matcher = LLMatcher(tokens, grammar, log_level=0)
    except ValueError as error:
        raise UsageError(f"the schema cannot be enforced: {_first(str(error))}") from None
    if matcher.is_error():
        raise UsageError(f"the schema cannot be enforced: {_first(matcher.get_error())}")
    return GrammarConstraint(matcher, vocabulary)


def _first(text: str) -> str:
    return " ".join(text.split())[:300]
