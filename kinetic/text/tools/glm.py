"""GLM: a name, then keys and values between tags.

<tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>a text as it is, anything else as JSON</arg_value>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kinetic.text.tools.call_grammar import CallGrammar
from kinetic.text.tools.dialect import Call, Dialect, End, Region
from kinetic.text.tools.json_calls import NotJson, dumps
from kinetic.text.tools.qwen_xml import raw_value
from kinetic.text.tools.tool import Tool

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME = re.compile(r"<tool_call>\s*([^<>\s]+)\s*(?=<arg_key>|</tool_call>)")
_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_PAIR_END = re.compile(r"</arg_value>\s*(?=<arg_key>|</tool_call>)")


class Glm(Dialect):
    """Raw values between tags; the tool's schema says which of them are JSON."""

    name = "glm"
    openers = (_OPEN,)
    markers = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """One call; a closing tag counts where no value is open."""
        if end is None and _CLOSE not in text[max(0, seen - len(_CLOSE)) :]:
            return None
        try:
            found = _call(text, tools)
        except NotJson:
            close = text.find(_CLOSE)
            return Region(close + len(_CLOSE) if close >= 0 else len(text))
        if found is None:
            return None if end is None else Region(len(text))
        return Region(found[1], (found[0],))

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """Frames, a line break between them."""
        calls = grammar.any_of([self._written(grammar, t) for t in tools])
        return grammar.some(calls, '"\\n"', parallel=parallel)

    def _written(self, grammar: CallGrammar, tool: Tool) -> str:
        opener, closer, key, key_end, value, value_end = (grammar.marker(m) for m in self.markers)
        parts = [f'{opener} {grammar.literal(tool.name)} "\\n"']
        for name in tool.properties:
            written = grammar.raw(tool, name, lambda word: f"{word} {value_end}", _VALUE_END)
            if written is None:
                written = f"{grammar.parameter(tool, name)} {value_end}"
            head = f'{key} {grammar.literal(name)} {key_end} "\\n" {value}'
            part = grammar.rule(f'{head} {written} "\\n"')
            parts.append(part if name in tool.required else f"{part}?")
        return grammar.rule(" ".join([*parts, closer]))


def _call(text: str, tools: Sequence[Tool]) -> tuple[Call, int] | None:
    """The call at the beginning and its end; None while it may be incomplete."""
    head = _NAME.match(text)
    if head is None:
        raise NotJson("no name")
    tool = next((t for t in tools if t.name == head[1]), None)
    arguments: dict[str, object] = {}
    at = head.end()
    while not text.startswith(_CLOSE, at):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise NotJson("no pair")
        end = _PAIR_END.search(text, pair.end())
        if end is None:
            return None
        key, value = pair[1].strip(), text[pair.end() : end.start()]
        arguments[key] = raw_value(value, tool.kinds(key) if tool is not None else frozenset())
        at = end.end()
    return Call(head[1], dumps(arguments)), at + len(_CLOSE)
