"""Hermes, Qwen2.5, Qwen3, Granite 4: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.text.tools.call_grammar import CallGrammar, json_call
from kinetic.text.tools.dialect import Call, Dialect, End, Region, arrived
from kinetic.text.tools.json_calls import NotJson, inside_string, read_calls, skip_space
from kinetic.text.tools.tool import Tool

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class Hermes(Dialect):
    """JSON between tags."""

    name = "hermes"
    openers = (_OPEN,)
    markers = (_OPEN, _CLOSE)

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """The calls up to the first closing tag that is not inside a JSON string."""
        if end is None and not arrived(text, _CLOSE, seen):
            return None
        at = text.find(_CLOSE)
        while at >= 0:
            body = text[len(_OPEN) : at]
            if not inside_string(body):
                return Region(at + len(_CLOSE), _calls(body))
            at = text.find(_CLOSE, at + 1)
        if end is None:
            return None
        return Region(len(text), _calls(text[len(_OPEN) :]) if end == "stop" else ())

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """Tagged objects, a line break between them."""
        head, tail = grammar.marker(_OPEN), grammar.marker(_CLOSE)
        body = grammar.any_of([json_call(grammar, t, "arguments") for t in tools])
        call = grammar.rule(f'{head} "\\n" {body} "\\n" {tail}')
        return grammar.some(call, '"\\n"', parallel=parallel)


def _calls(body: str) -> tuple[Call, ...]:
    calls: tuple[Call, ...] = ()
    at = 0
    try:
        while (at := skip_space(body, at)) < len(body):
            more, at = read_calls(body, at)
            calls += more
    except NotJson:
        return ()
    return calls
