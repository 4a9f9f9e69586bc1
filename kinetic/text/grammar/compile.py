"""From a request's words to a constraint."""

from __future__ import annotations

import json

from kinetic.errors import InternalError, UsageError
from kinetic.text.grammar.gbnf_syntax import parse_gbnf
from kinetic.text.grammar.gbnf_translate import translated
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
    vocabulary.warm()
    try:
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps({} if ready is True else ready), overrides={"whitespace_pattern": _SPACE}
        )
    except ImportError:
        vocabulary.get()  # says which package to install
        raise
    except ValueError as error:
        raise UsageError(f"the schema cannot be enforced: {_first(str(error))}") from None
    return compiled(vocabulary, grammar, "the schema")


def gbnf(vocabulary: GrammarVocabulary, text: str) -> GrammarConstraint:
    """Text that matches the rule `root` of a grammar in llama.cpp's notation.

    *Raises*: UsageError for a grammar that is wrong or too big.
    """
    return compiled(vocabulary, translated(parse_gbnf(text)), "the grammar")


def compiled(vocabulary: GrammarVocabulary, grammar: str, what: str) -> GrammarConstraint:
    """A grammar in the library's own notation; `what` it is, for the words of an error.

    *Raises*: UsageError where the library refuses it.
    """
    tokens = vocabulary.get()
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(tokens, grammar, log_level=0)
    except ValueError as error:
        raise UsageError(f"{what} cannot be enforced: {_first(str(error))}") from None
    if matcher.is_error():
        raise UsageError(f"{what} cannot be enforced: {_first(matcher.get_error())}")
    constraint = GrammarConstraint(matcher, vocabulary)
    try:
        if not constraint.mask().any():
            raise UsageError(f"{what} cannot be enforced: no answer fits it")
    except InternalError as error:
        raise UsageError(f"{what} cannot be enforced: {_first(str(error))}") from None
    return constraint


def _first(text: str) -> str:
    return " ".join(text.split())[:300]
