"""Gemma 4: `<|tool_call>call:NAME{key:value,...}<tool_call|>`, texts between `<|"|>` marks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from kinetic.text.tools.call_grammar import CallGrammar, parameter_schema
from kinetic.text.tools.dialect import Call, Dialect, End, Region, arrived
from kinetic.text.tools.json_calls import NotJson, dumps, skip_space
from kinetic.text.tools.tool import Tool

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_HEAD = re.compile(r"<\|tool_call>\s*call:\s*([^\s{<]+)\s*(?=\{)")
_KEY = re.compile(r"([^\s:{}\[\],<\"]+)\s*:")
_WORD = re.compile(r"[^\s,{}\[\]<]+")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "None": None}
_MAX_DEPTH = 64
_SCALARS = frozenset(("integer", "number", "boolean"))


class Gemma4(Dialect):
    """Objects with bare keys and marked texts."""

    name = "gemma4"
    openers = (_OPEN,)
    markers = (_OPEN, _CLOSE, _QUOTE)

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """One call, up to the first closing marker that is not inside a text."""
        if end is None and not arrived(text, _CLOSE, seen):
            return None
        at = text.find(_CLOSE)
        while at >= 0 and text.count(_QUOTE, 0, at) % 2:
            at = text.find(_CLOSE, at + 1)
        if at < 0 and end is None:
            return None
        body = text if at < 0 else text[:at]
        length = len(text) if at < 0 else at + len(_CLOSE)
        head = _HEAD.match(body)
        if head is None or (at < 0 and end == "length"):
            return Region(length)
        try:
            value, after = _value(body, head.end(), 0)
            if body[after:].strip():
                raise NotJson("text after the call")
            return Region(length, (Call(head[1], dumps(value)),))
        except NotJson:
            return Region(length)

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """Calls one after another."""
        calls = []
        for tool in tools:
            parts = []
            for name in tool.properties:
                head = grammar.literal(f"{name}:")
                part = grammar.rule(f"{head} {self._written(grammar, tool, name)}")
                parts.append((part, name in tool.required))
            head = grammar.literal(f"call:{tool.name}{{")
            calls.append(
                f'{grammar.marker(_OPEN)} {head} {grammar.fields(parts, ",")} "}}" '
                f"{grammar.marker(_CLOSE)}"
            )
        return grammar.some(grammar.any_of(calls), '""', parallel=parallel)

    def _written(self, grammar: CallGrammar, tool: Tool, name: str) -> str:
        kinds, quote = tool.kinds(name), grammar.marker(_QUOTE)
        if kinds == {"string"}:
            text = grammar.raw(tool, name, lambda word: f"{word} {quote}", _QUOTE)
            return f"{quote} ({text})"
        if kinds and kinds <= _SCALARS:
            return grammar.parameter(tool, name)
        grammar.refuse(tool, name)
        return self._any(grammar, parameter_schema(tool, name))

    def _any(self, grammar: CallGrammar, schema: object) -> str:
        """Any value; at least a list or an object where the schema wants one."""
        quote = grammar.marker(_QUOTE)
        text = f"{quote} {grammar.until(_QUOTE)}"
        grammar.define("gemma_key", r"/[A-Za-z_][A-Za-z0-9_.-]*:/ gemma_value")
        grammar.define("gemma_object", '"{" (gemma_key ("," gemma_key)*)? "}"')
        grammar.define("gemma_list", '"[" (gemma_value ("," gemma_value)*)? "]"')
        number = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?/"
        grammar.define(
            "gemma_value",
            f'{text} | {number} | "true" | "false" | "null" | gemma_list | gemma_object',
        )
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        return {"array": "gemma_list", "object": "gemma_object"}.get(str(kind), "gemma_value")


def _value(text: str, at: int, depth: int) -> tuple[object, int]:
    """The value at a place, and where it ends."""
    if depth > _MAX_DEPTH:
        raise NotJson("too deep")
    at = skip_space(text, at)
    if text.startswith(_QUOTE, at):
        return _marked(text, at)
    if text.startswith('"', at):
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, at)
        except ValueError:
            raise NotJson("no text") from None
        return value, end
    if text.startswith("{", at):
        return _object(text, at + 1, depth)
    if text.startswith("[", at):
        return _list(text, at + 1, depth)
    word = _WORD.match(text, at)
    if word is None:
        raise NotJson("no value")
    if word[0] in _WORDS:
        return _WORDS[word[0]], word.end()
    try:
        return json.loads(word[0], parse_constant=_no_constant), word.end()
    except (ValueError, RecursionError):
        raise NotJson("no value") from None


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _marked(text: str, at: int) -> tuple[str, int]:
    start = at + len(_QUOTE)
    end = text.find(_QUOTE, start)
    if end < 0:
        raise NotJson("a text without its end")
    return text[start:end], end + len(_QUOTE)


def _object(text: str, at: int, depth: int) -> tuple[object, int]:
    found: dict[str, object] = {}
    at = skip_space(text, at)
    while not text.startswith("}", at):
        if found:
            if not text.startswith(",", at):
                raise NotJson("no comma")
            at = skip_space(text, at + 1)
        if text.startswith(_QUOTE, at):
            key, at = _marked(text, at)
            at = skip_space(text, at)
            if not text.startswith(":", at):
                raise NotJson("no key")
            at += 1
        else:
            bare = _KEY.match(text, at)
            if bare is None:
                raise NotJson("no key")
            key, at = bare[1], bare.end()
        found[key], at = _value(text, at, depth + 1)
        at = skip_space(text, at)
    return found, at + 1


def _list(text: str, at: int, depth: int) -> tuple[object, int]:
    found: list[object] = []
    at = skip_space(text, at)
    while not text.startswith("]", at):
        if found:
            if not text.startswith(",", at):
                raise NotJson("no comma")
            at += 1
        value, at = _value(text, at, depth + 1)
        found.append(value)
        at = skip_space(text, at)
    return found, at + 1
