"""A terminal for programs under test: tmux, with its keyboard and its screen."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest


class Terminal:
    """One program in a terminal of 100 columns; kept open when the program ends."""

    def __init__(self, command: list[str], folder: Path, env: Mapping[str, str] | None = None):
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        self._socket = f"kinetic-test-{uuid.uuid4().hex[:8]}"
        settings = {"PYTHONUNBUFFERED": "1", **(env or {})}
        words = [*(f"{name}={value}" for name, value in settings.items()), *command]
        line = f"trap : INT; env {shlex.join(words)}; echo left with $?; sleep 600"
        self._tmux("-f", os.devnull, "new-session", "-d", "-x", "100", "-y", "40", line, cwd=folder)

    def _tmux(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._socket, *words],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    def type(self, text: str) -> None:
        """Type text."""
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, C-c, Up."""
        self._tmux("send-keys", *keys)

    def paste(self, text: str) -> None:
        """Paste as a terminal does, between the marks of a bracketed paste."""
        self._tmux("set-buffer", "--", text)
        self._tmux("paste-buffer", "-p")

    def screen(self, *, escapes: bool = False) -> str:
        """What stands on the screen and above it."""
        flags = ["-e"] if escapes else []
        return self._tmux("capture-pane", "-p", *flags, "-S", "-200")

    def wait_for(self, text: str, *, times: int = 1, seconds: float = 60) -> str:
        """The screen, once it shows a text so many times."""
        until = time.monotonic() + seconds
        while True:
            shown = self.screen()
            if shown.count(text) >= times:
                return shown
            if time.monotonic() > until:
                raise AssertionError(f"{text!r} did not come in {seconds} s:\n{shown.rstrip()}")
            time.sleep(0.05)

    def close(self) -> None:
        """End the program and its terminal."""
        subprocess.run(
            ["tmux", "-L", self._socket, "kill-server"], capture_output=True, check=False
        )


def kinetic_command(*words: object) -> list[str]:
    """The command line of `kinetic` with this Python."""
    return [sys.executable, "-m", "kinetic", *map(str, words)]


def raw_output(command: list[str], env: Mapping[str, str]) -> bytes:
    """All bytes that a program writes to a terminal of its own, which nobody types at."""
    child, parent = pty.fork()
    if child == 0:
        try:
            os.execvpe(command[0], command, {**os.environ, **env})
        finally:
            os._exit(127)
    written = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # Linux says so when the other end is closed
            piece = b""
        if not piece:
            break
        written += piece
    os.close(parent)
    os.waitpid(child, 0)
    return written
