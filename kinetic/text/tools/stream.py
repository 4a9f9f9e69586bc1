"""Takes tool calls out of a stream of text, whatever way it is cut."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence

from kinetic.text.events import OutputEvent, Text, ToolArguments, ToolCallEnd, ToolCallStart
from kinetic.text.tools.dialect import Call, Dialect, End
from kinetic.text.tools.tool import Tool

_ALPHABET = string.ascii_letters + string.digits


def new_call_id() -> str:
    """A fresh call id: nine letters and digits, which every template takes (Mistral's insist)."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class ToolParser:
    """Text in, text and whole calls out.

    Text before a call streams; a call comes whole, once it is complete. White space around
    calls is theirs. What never becomes a call comes out as the text it was. With `parallel`
    False only the first call is told, and what follows it is dropped.
    """

    def __init__(
        self,
        dialect: Dialect,
        tools: Sequence[Tool],
        *,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._dialect, self._tools = dialect, tuple(tools)
        self._parallel, self._new_id = parallel, new_id
        self._buffer = self._space = ""
        self._seen, self._inside, self._started = 0, False, False
        self._after_call = False
        self.calls = 0

    @property
    def complete(self) -> bool:
        """Whether nothing more is wanted of the model: the one call allowed is there."""
        return not self._parallel and self.calls > 0

    def push(self, text: str) -> list[OutputEvent]:
        """More text of the model."""
        self._buffer += text
        return self._scan(None)

    def flush(self, end: End) -> list[OutputEvent]:
        """The end of the text."""
        events = self._scan(end)
        if not self._after_call and self._space:
            events.append(Text(self._space))
        self._space = ""
        return events

    def _scan(self, end: End | None) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        while self._buffer and not self.complete:
            if not self._inside:
                at, begins = self._dialect.find(self._buffer, self._tools, not self._started)
                if end is not None and not begins:
                    at = len(self._buffer)
                self._text(self._buffer[:at], events)
                self._buffer, self._inside, self._seen = self._buffer[at:], begins, 0
                if not begins:
                    break
            region = self._dialect.read(self._buffer, self._tools, self._seen, end)
            self._seen = len(self._buffer)
            if region is None:
                break
            if region.calls:
                for call in region.calls:
                    self._call(call, events)
            else:
                self._text(self._buffer[: region.length], events)
            self._buffer, self._inside = self._buffer[region.length :], False
        return events

    def _text(self, text: str, events: list[OutputEvent]) -> None:
        """Text, but for white space that a call may follow."""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if self._after_call:
            shown = shown.lstrip()
        if shown:
            self._after_call, self._started = False, True
            events.append(Text(shown))

    def _call(self, call: Call, events: list[OutputEvent]) -> None:
        if self.complete:
            return
        self._space, self._after_call, self._started = "", True, True
        index, self.calls = self.calls, self.calls + 1
        events += [
            ToolCallStart(index, self._new_id(), call.name),
            ToolArguments(index, call.arguments),
            ToolCallEnd(index),
        ]
