"""Shows an answer as it comes: the thinking dimmed, the answer as it is."""

from __future__ import annotations

import sys

from kinetic.cli.terminal import printable, write_out
from kinetic.settings import color_allowed
from kinetic.text.events import OutputEvent, Reasoning, Text

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerWriter:
    """Writes events to stdout. A pipe gets the answer alone, byte for byte as the model wrote it.

    Where no escape sequence is welcome, lines before and after the thinking stand for the dimming.
    """

    def __init__(self, *, terminal: bool | None = None) -> None:
        self._terminal = sys.stdout.isatty() if terminal is None else terminal
        self._begin, self._end = (_DIM, _PLAIN) if color_allowed() else ("[thinking]\n", "\n[end]")
        self._thinking = False
        self._last = "\n"

    def show(self, event: OutputEvent) -> None:
        """Write one event."""
        if isinstance(event, Reasoning) and self._terminal:
            if not self._thinking:
                self._put(self._begin)
                self._thinking = True
            self._put(printable(event.text))
        elif isinstance(event, Text):
            self._end_thinking()
            # A model's words must not drive the terminal; a file gets them as they are.
            self._put(printable(event.text) if self._terminal else event.text)
            self._last = event.text[-1:] or self._last

    def close(self) -> None:
        """End the last line."""
        self._end_thinking()
        if self._last != "\n":
            write_out("\n")

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            self._put(self._end + "\n\n")
            self._last = "\n"

    def _put(self, text: str) -> None:
        if text:
            write_out(text)


def dimmed(text: str) -> str:
    """A line beside the conversation, for a terminal."""
    return f"{_DIM}{text}{_PLAIN}" if color_allowed() else text
