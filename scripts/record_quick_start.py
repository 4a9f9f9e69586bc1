#!/usr/bin/env python3
"""Record the book's first ten minutes: run its commands in a terminal and keep what they print.

    python3 scripts/record_quick_start.py              # renew the recording in docs/quick-start.md
    python3 scripts/record_quick_start.py --print      # print it instead
    python3 scripts/record_quick_start.py --model FILE # another file than the demo model

Run by the project's own Python, with the demo model that `scripts/try.py` fetches. The commands
run in an empty folder with the model in `models`, and see no other model of this computer. The
terminal is a plain one (TERM=dumb), so that no line is overwritten.
"""

from __future__ import annotations

import argparse
import os
import pty
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from _setup import say, stop

MODEL = "gemma-3-270m-Q4_K_M"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "quick-start.md"
BEGIN, END = "<!-- recording: scripts/record_quick_start.py -->", "<!-- end of the recording -->"
COMMANDS = (
    "kinetic --version",
    "kinetic models",
    f"kinetic info {MODEL}",
    "kinetic fit",
    f'kinetic run {MODEL} "The capital of France is" -n 24 --temp 0',
    f'kinetic run {MODEL} "Once upon a time" -n 32 --temp 0.8 --seed 42',
    f'echo "The four seasons are" | kinetic run {MODEL} -n 12 --temp 0 > answer.txt',
    "cat answer.txt",
    f'kinetic run {MODEL} "A colour:" --temp 0 -j \'{{"enum": ["red", "green", "blue"]}}\'',
    f"kinetic chat {MODEL}",
    f'kinetic run {MODEL} "Hello" --tmep 0',
    f'kinetic run {MODEL} "Hello" -ngl 99 -ts 1,1',
    f"kinetic serve {MODEL}",
    "curl -s http://127.0.0.1:8080/v1/completions "
    '-d \'{"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}\' '
    '-H "Content-Type: application/json"',
    f"kinetic bench {MODEL} -r 1",
)
"""What a new user types, in this order."""
SERVES = f"kinetic serve {MODEL}"
"""Goes on in a window of its own until the end."""


def main() -> int:
    """Record, and write or print the page's part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--print", action="store_true", help="print, and write nothing")
    parser.add_argument("--model", type=Path, help="the model file")
    options = parser.parse_args()
    from kinetic.settings import models_dir

    model = options.model or models_dir() / f"{MODEL}.gguf"
    if not model.is_file():
        stop(f"there is no {model}; scripts/try.py fetches the demo model.")
    with tempfile.TemporaryDirectory() as folder:
        text = record(Path(folder), model.resolve())
    if options.print:
        print(text, end="")
        return 0
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n```\n{text}```\n\n{END}{after}", encoding="utf-8")
    return 0


def record(folder: Path, model: Path) -> str:
    """The commands and what a terminal showed after each."""
    (folder / "models").mkdir()
    (folder / "models" / f"{MODEL}.gguf").symlink_to(model)
    programs = folder / "home" / "bin"
    programs.mkdir(parents=True)
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "dumb"}
    own |= {"NO_COLOR": "1", "KINETIC_MODELS": "models", "HOME": str(folder / "home")}
    env, shown, server = {**os.environ, **own}, [], None
    try:
        for command in COMMANDS:
            say(command)
            if command == SERVES:
                server, written = _server(command, folder, env)
            else:
                written = _in_terminal(command, folder, env)
            shown.append(f"$ {command}\n{written.rstrip()}\n")
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.wait(60)
    return "\n".join(shown)


def _server(command: str, folder: Path, env: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """Start the server; what it says until it listens."""
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=env, stdout=subprocess.PIPE, text=True
    )
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        stop("the server did not start; is port 8080 in use?")
    return process, line


def _in_terminal(command: str, folder: Path, env: dict[str, str]) -> str:
    child, parent = pty.fork()
    if child == 0:
        try:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "-c", command], env)
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
    return written.decode("utf-8").replace("\r\n", "\n")


if __name__ == "__main__":
    sys.exit(main())
