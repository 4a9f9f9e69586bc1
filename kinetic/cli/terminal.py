"""What Kinetic writes to a terminal: clean text, one line that updates in place, a bar.

The live line is a carriage return and spaces, never an escape sequence. The bar of a long
load is drawn by rich where escape sequences are welcome, and is the live line elsewhere.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from kinetic.settings import color_allowed

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# C0 and C1 control characters but tab and newline: text from a model file must not be able
# to drive the terminal it is shown on.
_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"
}

# Line ends, tabs, and what turns the direction of a line around.
_BREAKS = {9: "\\t", 10: "\\n"} | {
    code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


def printable(text: str) -> str:
    """`text` with its control characters spelled out, and lone surrogates replaced."""
    return text.translate(_CONTROL).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str) -> str:
    """`printable`, with what would begin a line or move a column spelled out too."""
    return printable(text.translate(_BREAKS))


def use_utf8() -> None:
    """Make stdout and stderr take any character, whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # absent on a captured stream
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace")


def is_interactive() -> bool:
    """Whether a person is at both ends, at a terminal that takes escape sequences."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    return at_terminal and os.environ.get("TERM") not in (None, "", "dumb")


STDOUT = "stdout"


def write_out(text: str) -> None:
    """Write to stdout at once.

    Raises: OSError with the name `STDOUT`, as of a full disk; BrokenPipeError.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        error.filename = STDOUT
        raise


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

    def clear(self) -> None:
        """Take the line away, so that other text may be written."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


class LoadBar:
    """How far loading is; its `progress` has the shape that `Model.load` calls.

    A load that is done in a moment shows nothing, and costs no import of rich.
    """

    def __init__(self, *, after: float = 0.3) -> None:
        self._line = LiveLine(every=0.1)
        self._shown_from = time.monotonic() + after
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show how many bytes of a stage are done."""
        if not self._line.enabled or time.monotonic() < self._shown_from:
            return
        if not color_allowed():
            share = f" {100 * done // total}%" if total > 0 else ""
            self._line.update(f"{stage}{share}, {done / 2**20:.0f} of {total / 2**20:.0f} MiB")
            return
        if self._bar is None or self._task is None:
            self._bar = _rich_bar()
            self._task = self._bar.add_task(stage, total=total)
        self._bar.update(self._task, description=stage, completed=done, total=total, refresh=True)

    def clear(self) -> None:
        """Take the bar away, so that other text may be written."""
        self._line.clear()
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def _rich_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    # No thread redraws it: every call of `progress` does, and it leaves no trace.
    bar = Progress(
        *columns,
        TransferSpeedColumn(),
        console=Console(file=sys.stderr),
        auto_refresh=False,
        transient=True,
    )
    bar.start()
    return bar
