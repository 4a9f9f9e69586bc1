"""Files that several processes write into one folder, and that a kill may interrupt.

A file is written under a temporary name and renamed when it is whole. Its writer holds a lock
on it until then, which tells litter from work under way.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO

PART = ".part"
"""What the name of an unfinished file ends with."""


def mark_as_written(file: IO[bytes]) -> None:
    """Hold a lock on a file that is being written; a killed process lets go of it."""
    try:
        import fcntl
    except ImportError:  # Windows: open files cannot be removed there
        return
    with contextlib.suppress(OSError):  # some network file systems have no locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_if_abandoned(part: Path) -> None:
    """Remove an unfinished file that nobody writes any more."""
    with contextlib.suppress(OSError):
        try:
            import fcntl
        except ImportError:
            part.unlink(missing_ok=True)
            return
        with open(part, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while it is written
            part.unlink(missing_ok=True)
