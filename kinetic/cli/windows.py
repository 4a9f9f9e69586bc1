"""What commands over the windows of a text share: reading it, its BOS, how far they are."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.cli import named
from kinetic.cli.terminal import LiveLine

if TYPE_CHECKING:
    from kinetic.text.tokenizer import Tokenizer

DEFAULT_WINDOW = 512


def read_text(path: Path) -> str:
    """A text file, without its last line end, as llama.cpp reads a prompt's.

    Raises: UsageError where it cannot be read, or is not UTF-8.
    """
    return named.read_text(path, "the text", encoding="utf-8").removesuffix("\n")


def first_token(tokenizer: Tokenizer) -> int | None:
    """BOS, where windows begin with it."""
    return tokenizer.bos_id if tokenizer.add_bos else None


class Progress:
    """How many windows are done and how long the rest takes, on stderr.

    With `shares_line`, where stdout is the same terminal and shows an estimate that grows, that
    is the progress and nothing else is shown.
    """

    def __init__(self, total: int, *, shares_line: bool = False) -> None:
        self._total, self._started = total, time.monotonic()
        self._line = LiveLine(enabled=not (shares_line and sys.stdout.isatty()))

    def update(self, done: int) -> None:
        """Show that so many windows are done."""
        left = (time.monotonic() - self._started) / done * (self._total - done)
        bar = "#" * (24 * done // self._total)
        minutes, seconds = divmod(round(left), 60)
        shown = f"window {done} of {self._total}, {minutes}:{seconds:02} left"
        self._line.update(f"[{bar:<24}] {shown}")

    def clear(self) -> None:
        """Make room for other text."""
        self._line.clear()
