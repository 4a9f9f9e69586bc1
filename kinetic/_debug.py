"""The KINETIC_DEBUG ladder: what each level prints, and the one function that prints it."""

from __future__ import annotations

import sys
from enum import IntEnum

from kinetic.settings import debug_level


class Debug(IntEnum):
    """The rungs; each includes those below it."""

    DEVICES = 1
    TIMINGS = 2
    PLAN = 3
    IR = 4
    SOURCE = 5
    ASSEMBLY = 6


def wants(level: Debug) -> bool:
    """Whether the user asked for this rung: ask before building a costly text."""
    return debug_level() >= level


def debug(level: Debug, text: str) -> None:
    """Print `text` on stderr if KINETIC_DEBUG reaches `level`."""
    if wants(level):
        print(f"[{level.name.lower()}] {text}", file=sys.stderr)
