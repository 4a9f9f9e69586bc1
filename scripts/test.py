#!/usr/bin/env python3
"""Run the tests on a machine that has nothing but Python 3.11 or newer.

    python3 scripts/test.py                   # all but the slow ones
    python3 scripts/test.py -m slow           # the slow ones
    python3 scripts/test.py tests/cli -x      # anything pytest takes

Makes .venv if it is not there and installs the extras the tests use. On a build machine (root,
apt-get) without a Vulkan driver it installs the software one, and Chromium for the slow tests;
elsewhere the tests that need them are skipped and say why.
"""

from __future__ import annotations

import sys

from _setup import ensure_chromium, ensure_software_vulkan, ensure_venv, run


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
    return run(python, "-m", "pytest", *arguments)


if __name__ == "__main__":
    sys.exit(main())
