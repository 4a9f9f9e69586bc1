"""Harmony, gpt-oss's way to write: every message names its channel.

    <|channel|>analysis<|message|>...<|end|>                             thinking
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>           the answer

Commentary to nobody is a word to the user before a call, so it is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kinetic.text.events import (
    OutputEvent,
    Reasoning,
    Text,
    ToolArguments,
    ToolCallEnd,
    ToolCallStart,
)
from kinetic.text.held_text import first_marker, partial_marker
from kinetic.text.tools import End, Tool, new_call_id
from kinetic.text.tools.json_calls import NotJson, arguments_text, read_value

_MESSAGE, _START = "<|message|>", "<|start|>"
_BODY_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyParser:
    """Text in, neutral events out. `is_open`: the prompt ends inside the analysis."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        is_open: bool,
        parallel: bool,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._offers_tools, self._parallel, self._new_id = bool(tools), parallel, new_id
        self._buffer, self._header = "", ""
        self._state = "analysis" if is_open else "start"
        self.calls = 0

    @property
    def complete(self) -> bool:
        """Whether the one call allowed is there."""
        return not self._parallel and self.calls > 0

    def push(self, text: str) -> list[OutputEvent]:
        """More text of the model."""
        self._buffer += text
        return self._scan(None)

    def flush(self, end: End) -> list[OutputEvent]:
        """The end of the text."""
        return self._scan(end)

    def _scan(self, end: End | None) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        while self._buffer and not self.complete:
            if self._state == "start":
                markup = ("<|channel|>", _START, " to=")
                if self._buffer.startswith(markup):
                    self._state = "header"
                elif end is None and any(m.startswith(self._buffer) for m in markup):
                    break
                else:  # an answer without any channel, or one that the prompt has opened
                    self._state = "final"
            elif self._state == "header":
                at = self._buffer.find(_MESSAGE)
                if at < 0:
                    # Half a header is markup, not words.
                    self._buffer = self._buffer if end is None else ""
                    break
                self._header = self._buffer[:at]
                self._buffer = self._buffer[at + len(_MESSAGE) :]
                self._state = self._kind(self._header)
            elif not self._body(end, events):
                break
        return events

    def _kind(self, header: str) -> str:
        channel = _CHANNEL.search(header)
        if _RECIPIENT.search(header) is not None and self._offers_tools:
            return "call"
        return "analysis" if channel is not None and channel[1] == "analysis" else "final"

    def _body(self, end: End | None, events: list[OutputEvent]) -> bool:
        """Take what there is of a message; whether it has ended."""
        found = first_marker(self._buffer, _BODY_ENDS)
        if found is None:
            keep = 0 if end is not None else partial_marker(self._buffer, _BODY_ENDS)
            ready = self._buffer[: len(self._buffer) - keep]
            if self._state == "call":
                if end is not None:
                    self._call(self._buffer, end == "stop", events)
                    self._buffer = ""
                return False
            self._say(ready, events)
            self._buffer = self._buffer[len(ready) :]
            return False
        at, marker = found
        if self._state == "call":
            self._call(self._buffer[:at], True, events)
        else:
            self._say(self._buffer[:at], events)
        self._buffer = self._buffer[at + (0 if marker == _START else len(marker)) :]
        self._state = "header"
        return True

    def _say(self, text: str, events: list[OutputEvent]) -> None:
        if text:
            events.append(Reasoning(text) if self._state == "analysis" else Text(text))

    def _call(self, body: str, whole: bool, events: list[OutputEvent]) -> None:
        recipient = _RECIPIENT.search(self._header)
        name = recipient[1].removeprefix("functions.") if recipient is not None else ""
        try:
            value, spelled, at = read_value(body if body.strip() else "{}")
            if not name or not whole or body[at:].strip():
                raise NotJson("no call")
        except NotJson:
            events.append(Text(body))
            return
        index, self.calls = self.calls, self.calls + 1
        events += [
            ToolCallStart(index, self._new_id(), name),
            ToolArguments(index, arguments_text(value, spelled)),
            ToolCallEnd(index),
        ]
