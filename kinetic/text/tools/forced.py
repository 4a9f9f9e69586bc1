"""Holds an answer to calls of the tools on offer, written as the model's template has them."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.errors import UsageError
from kinetic.text.grammar.compile import compiled, json_schema
from kinetic.text.grammar.matcher import GrammarConstraint
from kinetic.text.grammar.vocabulary import GrammarVocabulary
from kinetic.text.tools.call_grammar import CallGrammar
from kinetic.text.tools.dialect import Dialect
from kinetic.text.tools.tool import Tool


def forced_calls(
    vocabulary: GrammarVocabulary,
    dialect: Dialect,
    tools: Sequence[Tool],
    *,
    parallel: bool = True,
) -> GrammarConstraint:
    """One call, or if `parallel` one and more, and nothing else.

    Arguments are held to each tool's schema. Where that cannot be, a strict tool is refused, and
    another's arguments are any JSON object.

    *Raises*: UsageError.
    """
    grammar = _new(vocabulary)
    start = dialect.write(grammar, tools, parallel)
    constraint = compiled(vocabulary, grammar.text(start), "tool_choice")
    constraint.leads = True
    return constraint


def offered_calls(
    vocabulary: GrammarVocabulary, dialect: Dialect, tools: Sequence[Tool]
) -> GrammarConstraint:
    """Text and calls as the model likes, but each call held as in `forced_calls`.

    *Raises*: UsageError.
    """
    grammar = _new(vocabulary)
    constraint = compiled(vocabulary, grammar.text(dialect.offer(grammar, tools)), "strict")
    constraint.leads = True
    return constraint


def _new(vocabulary: GrammarVocabulary) -> CallGrammar:
    control = {t.text: t.id for t in vocabulary.tokenizer.special_tokens if t.control}

    def held(schema: object) -> bool:
        try:
            json_schema(vocabulary, schema)
        except UsageError:
            return False
        return True

    return CallGrammar(control.get, held)
