"""gpt-oss: a call is a message to a function; `kinetic.text.harmony` reads the messages."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.errors import InternalError
from kinetic.text.tools.call_grammar import CallGrammar
from kinetic.text.tools.dialect import Dialect, End, Region
from kinetic.text.tools.tool import Tool


class Harmony(Dialect):
    """Channels and recipients; markers stand for thinking and calls alike."""

    name = "harmony"
    openers = ("<|channel|>",)
    markers = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """Never asked: calls are channels, and `kinetic.text.harmony` reads all of them."""
        raise InternalError("harmony's calls are read by kinetic.text.harmony, not as regions")

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """Perhaps an analysis, then one message to a function; the answer ends with it."""
        start, channel, constrain, message, _, _ = (grammar.marker(m) for m in self.markers)
        thought = f'{channel} "analysis" {message} {grammar.until("<|end|>")} {start} "assistant"'
        calls = []
        for tool in tools:
            head = grammar.literal(f"commentary to=functions.{tool.name} ")
            calls.append(f'{head} {constrain} "json" {message} {grammar.arguments(tool)}')
        return f"({thought})? {channel} {grammar.any_of(calls)}"

    def offer(self, grammar: CallGrammar, tools: Sequence[Tool]) -> str:
        """Messages to nobody, then the answer or a call."""
        start, channel, _, message, end, _ = (grammar.marker(m) for m in self.markers)
        text = grammar.without(self.markers)
        said = f'{channel} ("analysis" | "commentary") {message} {text} {end} {start} "assistant"'
        answer = f'{channel} "final" {message} {text}'
        return f"({said})* (({answer}) | ({self.write(grammar, tools, False)}))"
