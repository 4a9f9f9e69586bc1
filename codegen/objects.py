"""The cache of machine code on disk: a warm start links, it does not compile.

An entry is the object's BLAKE3 followed by the object. It is written to a temporary
file and renamed, so that concurrent processes and killed ones leave whole entries or
none; an entry whose hash does not match is a miss and is written again.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

_HASH = 32


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
    try:
        entry = path.read_bytes()
    except OSError:
        entry = b""
    if len(entry) > _HASH and blake3(entry[_HASH:]).digest() == entry[:_HASH]:
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
    except OSError:
        pass
    return obj
