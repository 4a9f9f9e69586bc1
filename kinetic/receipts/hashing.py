"""BLAKE3 of model files, remembered in one small file so that a large model is hashed once.

`hashes.json` in Kinetic's cache directory: {path: [size, time of change, hash]}. It is written
whole under another name and renamed, keeps the newest entries, and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from blake3 import blake3

from kinetic import settings
from kinetic.errors import ModelFileError

KEEP = 256
"""Files whose hashes are remembered."""
_BLOCK = 16 << 20
_MOST_BYTES = 1 << 20
_SETTLED = 2.0
"""Seconds after which a file that is written again gets another time of change everywhere."""

Progress = Callable[[int, int], None]


def file_hash(path: Path, progress: Progress | None = None, *, cache: Path | None = None) -> str:
    """The BLAKE3 of a file, from the cache where path, size and time of change are the same.

    *Raises*: ModelFileError for a file that cannot be read.
    """
    store = settings.cache_dir() / "hashes.json" if cache is None else cache
    key = str(path.resolve())
    try:
        info = path.stat()
        known = _load(store).get(key)
        if known is not None and known[:2] == [info.st_size, info.st_mtime_ns]:
            return str(known[2])
        found = _hash(path, info.st_size, progress)
        after = path.stat()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    same = (info.st_size, info.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    if same and time.time() - info.st_mtime > _SETTLED:
        _save(store, key, [info.st_size, info.st_mtime_ns, found])
    return found


def model_hash(paths: Sequence[Path], progress: Progress | None = None) -> str:
    """The hash of a model: its file's, or for a split one the BLAKE3 of its parts' hex hashes."""
    found = [file_hash(path, progress) for path in paths]
    return found[0] if len(found) == 1 else blake3("".join(found).encode()).hexdigest()


def _hash(path: Path, size: int, progress: Progress | None) -> str:
    digest, done = blake3(), 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(done, max(size, done))
    return digest.hexdigest()


def _load(store: Path) -> dict[str, list[object]]:
    """What is remembered; nothing where the file is not what this module writes."""
    try:
        with open(store, "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        found = json.loads(raw) if len(raw) <= _MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, list) and _is_entry(v)}


def _is_entry(value: list[object]) -> bool:
    return (
        len(value) == 3
        and all(isinstance(v, int) for v in value[:2])
        and isinstance(value[2], str)
        and len(value[2]) == 64
    )


def _save(store: Path, key: str, entry: list[object]) -> None:
    """Remember one more. A folder that cannot be written costs time, never an answer."""
    with contextlib.suppress(OSError):
        known = _load(store)
        known.pop(key, None)
        kept = dict([*known.items(), (key, entry)][-KEEP:])
        store.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=store.parent, prefix=".hashes.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=0)
            os.replace(name, store)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
