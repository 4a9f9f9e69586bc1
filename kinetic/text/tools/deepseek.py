"""DeepSeek: calls between full-width markers, each a name and a JSON object.

V3.1       <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
           <｜tool▁calls▁end｜>
R1, V3     <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, then {...} in a block marked json
"""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.text.tools.call_grammar import CallGrammar
from kinetic.text.tools.dialect import Call, Dialect, End, Region, arrived
from kinetic.text.tools.json_calls import NotJson, arguments_text, read_value, skip_space
from kinetic.text.tools.tool import Tool

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _ONE_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_BLOCK, _BLOCK_END = "```json", "```"


class DeepSeek(Dialect):
    """Names and objects between markers."""

    name = "deepseek"
    openers = (_ALL, _ONE)
    markers = (_ALL, _ALL_END, _ONE, _ONE_END, _SEPARATOR)

    def __init__(self, template: str = "") -> None:
        self._in_block = _BLOCK in template

    @classmethod
    def of(cls, template: str) -> DeepSeek:
        """With its arguments in a block if the template has them so."""
        return cls(template)

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """All calls, up to the marker that closes the list or the end."""
        if end is None and not arrived(text, _ALL_END, seen):
            return None
        calls: list[Call] = []
        at = len(_ALL) if text.startswith(_ALL) else 0
        try:
            while text.startswith(_ONE, after := skip_space(text, at)):
                call, at = _one(text, after + len(_ONE))
                calls.append(call)
        except NotJson:
            close = text.find(_ALL_END)
            return Region(close + len(_ALL_END) if close >= 0 else len(text))
        after = skip_space(text, at)
        closed = text.startswith(_ALL_END, after)
        if not closed and (end is None or (end == "length" and not calls)):
            close = text.find(_ALL_END)
            return Region(close + len(_ALL_END) if close >= 0 else len(text))
        return Region(after + len(_ALL_END) if closed else at, tuple(calls))

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """A list of calls."""
        first, last, one, one_end, separator = (grammar.marker(m) for m in self.markers)
        written = []
        for tool in tools:
            arguments = grammar.arguments(tool)
            if self._in_block:
                head = grammar.literal(f"{tool.name}\n{_BLOCK}\n")
                body = f'"function" {separator} {head} {arguments} "\\n{_BLOCK_END}"'
            else:
                body = f"{grammar.literal(tool.name)} {separator} {arguments}"
            written.append(grammar.rule(f"{one} {body} {one_end}"))
        between = '"\\n"' if self._in_block else '""'
        calls = grammar.some(grammar.any_of(written), between, parallel=parallel)
        return f"{first} {calls} {last}"


def _one(text: str, at: int) -> tuple[Call, int]:
    separator = text.find(_SEPARATOR, at)
    if separator < 0:
        raise NotJson("no separator")
    name, start = text[at:separator].strip(), separator + len(_SEPARATOR)
    block = text.find(_BLOCK, start)
    if name == "function" and block >= 0 and "{" not in text[start:block]:
        name, start = text[start:block].strip(), block + len(_BLOCK)
    value, spelled, at = read_value(text, start)
    if not name:
        raise NotJson("no name")
    for closer in (_BLOCK_END, _ONE_END):
        after = skip_space(text, at)
        at = after + len(closer) if text.startswith(closer, after) else at
    return Call(name, arguments_text(value, spelled)), at
