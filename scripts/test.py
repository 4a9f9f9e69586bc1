#!/usr/bin/env python3
"""Run the tests on a machine that has nothing but Python 3.11 or newer.

    python3 scripts/test.py                   # all but the slow ones
    python3 scripts/test.py -m slow           # the slow ones
    python3 scripts/test.py tests/cli -x      # anything pytest takes

The whole suite runs as many tests at once as there are CPUs; the slow ones, and those named, run
one after the other.

Makes .venv if it is not there and installs the extras the tests use. On a build machine (root,
apt-get) without a Vulkan driver it installs the software one, and Chromium for the slow tests;
elsewhere the tests that need them are skipped and say why.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from _setup import ensure_chromium, ensure_software_vulkan, ensure_venv, run

_MOST_AT_ONCE = 8
"""Test processes: each loads models and compiles kernels of its own."""


def main() -> int:
    """Set up what is missing, then run pytest."""
    arguments = sys.argv[1:]
    clients = ["clients"] if "slow" in arguments else []
    python = ensure_venv("test", "vulkan", "server", *clients)
    ensure_software_vulkan()
    if clients:
        ensure_chromium()
    if not any(word == "-m" or word.startswith("-m=") for word in arguments):
        arguments = ["-m", "not slow", *arguments]
    if not clients and not any(Path(word.partition("::")[0]).exists() for word in arguments):
        arguments = ["-n", str(min(_MOST_AT_ONCE, os.cpu_count() or 1)), *arguments]
    return run(python, "-m", "pytest", *arguments)


if __name__ == "__main__":
    sys.exit(main())
