"""The options that hold an answer to a grammar or a JSON Schema."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetic.cli.named import read_text
from kinetic.cli.parser import CommandParser, name
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.runtime.sampling.constraint import Constraint
    from kinetic.text.reasoning import ReasoningStyle
    from kinetic.text.tokenizer import Tokenizer

_GRAMMAR, _GRAMMAR_FILE = "--grammar", "--grammar-file"
_SCHEMA, _SCHEMA_FILE = "--json-schema", "--json-schema-file"
_MOST_BYTES = 1 << 20


def add_forms(parser: CommandParser, group: str) -> None:
    """--grammar and --json-schema, each with its file."""
    parser.option(group, _GRAMMAR, metavar="TEXT", help="hold the answer to a GBNF grammar")
    parser.option(
        group, _GRAMMAR_FILE, metavar="FILE", type=name("a file"), help="the grammar, from a file"
    )
    parser.option(
        group, *("-j", _SCHEMA), metavar="JSON", help="hold the answer to a JSON Schema; {} is any"
    )
    parser.option(
        group,
        *("-jf", _SCHEMA_FILE),
        metavar="FILE",
        type=name("a file"),
        help="the JSON Schema, from a file",
    )


@dataclass(frozen=True)
class Form:
    """What an answer is held to: a GBNF grammar, or else a schema."""

    option: str
    grammar: str | None = None
    schema: object = None

    def constraint(
        self, tokenizer: Tokenizer, style: ReasoningStyle | None, is_open: bool
    ) -> Constraint:
        """The form as the sampler wants it; with a style, after the thinking.

        *Raises*: UsageError for what cannot be enforced, UnsupportedError without its library.
        """
        from kinetic.text.grammar import AfterReasoning, GrammarVocabulary, gbnf, json_schema

        vocabulary = GrammarVocabulary(tokenizer)
        try:
            if self.grammar is not None:
                inner = gbnf(vocabulary, self.grammar)
            else:
                inner = json_schema(vocabulary, self.schema)
        except UsageError as error:
            raise UsageError(f"{self.option}: {error}") from None
        if style is None:
            return inner
        return AfterReasoning(inner, vocabulary, style, is_open)


def given_form(options: argparse.Namespace) -> Form | None:
    """The form that the command line asks for, its file read; None without one.

    *Raises*: UsageError for two at once, a file that cannot be read, or no JSON.
    """
    given = {
        _GRAMMAR: options.grammar,
        _GRAMMAR_FILE: options.grammar_file,
        _SCHEMA: options.json_schema,
        _SCHEMA_FILE: options.json_schema_file,
    }
    named = [option for option, value in given.items() if value is not None]
    if not named:
        return None
    if len(named) > 1:
        raise UsageError(f"use one of {' and '.join(named)}, not both.")
    (option,) = named
    text = (
        read_text(given[option], option, _MOST_BYTES) if option.endswith("-file") else given[option]
    )
    if option in (_GRAMMAR, _GRAMMAR_FILE):
        return Form(option, grammar=text)
    try:
        return Form(option, schema=json.loads(text))
    except (ValueError, RecursionError):
        raise UsageError(f'{option} takes JSON such as {{"type": "object"}}.') from None
