"""Qwen3-Coder, Qwen3.5 and LFM3: tags that look like XML around raw text.

<tool_call>
<function=NAME>
<parameter=KEY>
any text, even </parameter>, which closes only before the next tag of the frame
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kinetic.text.tools.call_grammar import CallGrammar
from kinetic.text.tools.dialect import Call, Dialect, End, Region
from kinetic.text.tools.json_calls import NotJson, dumps, read_value, skip_space
from kinetic.text.tools.tool import Tool, kind_of

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END, _PARAMETER = "<function=", "</function>", "<parameter="
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>|</tool_call>))")


class _Incomplete(Exception):
    """More text may complete the call."""


class QwenXml(Dialect):
    """Raw values between tags; the tool's schema says which of them are JSON."""

    name = "qwen-xml"
    openers = (_OPEN, _FUNCTION)
    markers = (_OPEN, _CLOSE)

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """The calls of one frame; its opening tag may be missing."""
        if end is None and ">" not in text[seen:]:
            return None
        try:
            return _frame(text, tools, final=end is not None)
        except _Incomplete:
            return None if end is None else Region(len(text))
        except NotJson:
            at = text.find(_CLOSE)
            if at >= 0:
                return Region(at + len(_CLOSE))
            return None if end is None else Region(len(text))

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """Frames, a line break between them."""
        head, tail = grammar.marker(_OPEN), grammar.marker(_CLOSE)
        body = grammar.any_of([_written(grammar, t) for t in tools])
        call = grammar.rule(f'{head} "\\n" {body} "\\n" {tail}')
        return grammar.some(call, '"\\n"', parallel=parallel)


def _written(grammar: CallGrammar, tool: Tool) -> str:
    parts = [grammar.literal(f"{_FUNCTION}{tool.name}>\n")]
    for name in tool.properties:
        value = grammar.raw(tool, name, lambda word: f'{word} "\\n</parameter>"', "</parameter>")
        if value is None:
            value = grammar.rule(f'{grammar.parameter(tool, name)} "\\n</parameter>"')
        head = grammar.literal(f"{_PARAMETER}{name}>\n")
        part = grammar.rule(f'{head} {value} "\\n"')
        parts.append(part if name in tool.required else f"{part}?")
    return grammar.rule(" ".join([*parts, grammar.literal(_FUNCTION_END)]))


def _frame(text: str, tools: Sequence[Tool], *, final: bool) -> Region:
    calls: list[Call] = []
    at = skip_space(text, len(_OPEN)) if text.startswith(_OPEN) else 0
    while True:
        if calls:
            after = skip_space(text, at)
            if text.startswith(_CLOSE, after):
                return Region(after + len(_CLOSE), tuple(calls))
            if not text.startswith(_FUNCTION, after):
                rest = text[after:]
                if not final and (_CLOSE.startswith(rest) or _FUNCTION.startswith(rest)):
                    raise _Incomplete
                return Region(at, tuple(calls))
            at = after
        call, at = _function(text, at, tools)
        calls.append(call)


def _tag(text: str, at: int, head: str) -> tuple[str, int] | None:
    """The name in `<head=NAME>`, and the place after it; None for another tag."""
    if not text.startswith(head, at):
        if head.startswith(text[at:]):
            raise _Incomplete
        return None
    close = text.find(">", at)
    if close < 0:
        raise _Incomplete
    return text[at + len(head) : close].strip(), close + 1


def _function(text: str, at: int, tools: Sequence[Tool]) -> tuple[Call, int]:
    found = _tag(text, at, _FUNCTION)
    if found is None or not found[0]:
        raise NotJson("no function")
    name, at = found
    tool = next((t for t in tools if t.name == name), None)
    arguments: dict[str, object] = {}
    while True:
        at = skip_space(text, at)
        parameter = _tag(text, at, _PARAMETER)
        if parameter is not None:
            key, start = parameter
            value_end = _VALUE_END.search(text, start)
            if value_end is None:
                raise _Incomplete
            start += text.startswith("\n", start)
            value = text[start : max(start, value_end.start())]
            arguments[key] = raw_value(value, tool.kinds(key) if tool is not None else frozenset())
            at = value_end.end()
        elif text.startswith(_FUNCTION_END, at):
            return Call(name, dumps(arguments)), at + len(_FUNCTION_END)
        elif text.startswith(_CLOSE, at):
            return Call(name, dumps(arguments)), at
        elif any(tag.startswith(text[at:]) for tag in (_FUNCTION_END, _CLOSE)):
            raise _Incomplete
        else:
            raise NotJson("no tag of the frame")


def raw_value(text: str, kinds: frozenset[str]) -> object:
    """A raw value as one of the types wanted; what is not JSON of such a type stays text."""
    if not kinds or kinds == {"string"}:
        return text
    word = text.strip()
    if word in ("True", "False", "None"):  # templates print Python's words
        word = {"True": "true", "False": "false", "None": "null"}[word]
    try:
        value, _, end = read_value(word)
    except NotJson:
        return text
    if word[end:].strip() or ("string" in kinds and not _fits(value, kinds)):
        return text
    return value


def _fits(value: object, kinds: frozenset[str]) -> bool:
    kind = kind_of(value)
    return kind != "string" and (kind in kinds or (kind == "integer" and "number" in kinds))
