"""What Kinetic writes to a terminal: clean text and one line that updates in place.

No escape sequence is ever written: the live line uses a carriage return and spaces, which
also holds what NO_COLOR and TERM=dumb ask for.
"""

from __future__ import annotations

import os
import sys
import time

# C0 and C1 control characters but tab and newline: text from a model file must not be able
# to drive the terminal it is shown on.
_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"
}


def printable(text: str) -> str:
    """`text` with its control characters spelled out, and lone surrogates replaced."""
    return text.translate(_CONTROL).encode("utf-8", "replace").decode("utf-8")


def use_utf8() -> None:
    """Make stdout and stderr take any character, whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # absent on a captured stream
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace")


class LiveLine:
    """One line of stderr that is overwritten in place; silent unless stderr is a terminal."""

    def __init__(self, *, enabled: bool = True, every: float = 0.1) -> None:
        self.enabled = enabled and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._every = every
        self._next = time.monotonic() + 3 * every  # quick work shows nothing at all
        self._width = 0

    def update(self, text: str) -> None:
        """Show `text`, but no more often than ten times a second."""
        now = time.monotonic()
        if not self.enabled or now < self._next:
            return
        self._next = now + self._every
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage of loading is; the shape `Model.load` calls."""
        share = f" {100 * done // total}%" if total > 0 else ""
        self.update(f"{stage}{share}")

    def clear(self) -> None:
        """Take the line away, so that other text may be written."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
