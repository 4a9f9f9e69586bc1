"""Fixtures every test may use: where the big shared data and the committed golden data lie."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Helpers are imported as `from support.gguf_writer import write_gguf`.
sys.path.insert(0, str(ROOT / "tests"))

if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    # A shell's background job ignores Ctrl-C, and so would every program a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def find_shared() -> Path | None:
    """The folder of big shared golden data: $KINETIC_SHARED, else ../shared, else none."""
    named = os.environ.get("KINETIC_SHARED")
    path = Path(named) if named else ROOT.parent / "shared"
    return path if (path / "golden").is_dir() else None


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The shared data; the test is skipped by name where it is absent."""
    path = find_shared()
    if path is None:
        pytest.skip("shared golden data is absent (set KINETIC_SHARED)")
    return path


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The golden data committed with the code."""
    return ROOT / "golden"
