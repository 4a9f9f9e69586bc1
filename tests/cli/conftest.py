"""The `kinetic` command as a subprocess, the way a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

Kinetic = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kinetic() -> Kinetic:
    """Run `kinetic` with arguments; `input` is its stdin, `env` is added to the environment."""

    def run(
        *arguments: object, input: str | bytes = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        raw = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            [sys.executable, "-m", "kinetic", *map(str, arguments)],
            input=raw,
            capture_output=True,
            env={**os.environ, **(env or {})},
            timeout=120,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run
