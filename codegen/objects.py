"""The cache of machine code on disk: a warm start links, it does not compile.

An entry is the object's BLAKE3 followed by the object. It is written to a temporary
file and renamed, so that concurrent processes and killed ones leave whole entries or
none; an entry whose hash does not match is a miss and is written again. Each write drops
the entries that were used least recently, beyond `KEEP_ENTRIES` and `KEEP_BYTES`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

_HASH = 32

KEEP_ENTRIES = 64
"""Objects that a folder keeps; a model needs one for each kind of CPU and version of Kinetic."""
KEEP_BYTES = 256 << 20
"""What they may take together."""
_ABANDONED = 3600.0
"""Seconds after which a temporary file belongs to a process that was killed."""


@functools.cache
def source_digest() -> bytes:
    """BLAKE3 of the sources that decide what machine code a kernel's name stands for."""
    root = Path(__file__).resolve().parent
    ir = root.parent / "ir"
    files = [*sorted((root / "kernels").rglob("*.py")), *sorted((root / "targets").rglob("*.py"))]
    files += [ir / "math.py", ir / "cpu_abi.py", *sorted((ir / "quant").glob("*.py"))]
    digest = blake3()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.digest()


def object_key(target: str, kernels: list[str]) -> str:
    """The name of a cache entry: target, kernels and the sources of both."""
    text = "\n".join([target, *kernels]).encode()
    return blake3(source_digest() + text).hexdigest()[:40]


def cached_object(folder: Path, key: str, make: Callable[[], bytes]) -> bytes:
    """The object of a key, from the cache or made and kept.

    A folder that cannot be read or written costs time, never the answer.
    """
    path = folder / f"{key}.o"
    entry = _read(path)
    if len(entry) > _HASH and blake3(entry[_HASH:]).digest() == entry[:_HASH]:
        with contextlib.suppress(OSError):
            os.utime(path)  # used last, dropped last
        return entry[_HASH:]
    obj = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{key}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blake3(obj).digest() + obj)
            os.replace(name, path)
        except OSError:
            Path(name).unlink(missing_ok=True)
        _drop_old(folder, path)
    except OSError:
        pass
    return obj


def _read(path: Path) -> bytes:
    """The bytes of a regular file, nothing of any other: a pipe would wait for its writer."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read() if regular else b""
    except OSError:
        return b""


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _drop_old(folder: Path, written: Path) -> None:
    """Bound the folder. Another process may drop the same files at the same time, or read one:
    an open file stays whole, and a dropped entry is only a miss."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            info = path.lstat()
            if not stat.S_ISREG(info.st_mode) or path == written:
                continue
            if path.suffix == ".o":
                found.append((info.st_mtime, info.st_size, path))
            elif path.name.startswith(".") and info.st_mtime < time.time() - _ABANDONED:
                path.unlink()
    kept, size = 1, written.lstat().st_size
    for _, nbytes, path in sorted(found, reverse=True):
        kept, size = kept + 1, size + nbytes
        if kept > KEEP_ENTRIES or size > KEEP_BYTES:
            with contextlib.suppress(OSError):
                path.unlink()
