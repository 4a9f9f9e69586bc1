"""One key from the terminal, without Enter."""

from __future__ import annotations

import os
import sys


def read_key() -> str:
    """The next key; empty when there is no more input.

    Raises: KeyboardInterrupt for Ctrl-C.
    """
    if os.name == "nt":
        import msvcrt

        key: str = msvcrt.getwch()  # type: ignore[attr-defined]
        if key == "\x03":
            raise KeyboardInterrupt
        return key
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)  # Ctrl-C still interrupts
        return os.read(descriptor, 1).decode("ascii", "replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
