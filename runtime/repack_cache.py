"""The repacked form of models on disk: a second load maps it instead of making it.

Off unless a folder is named. An entry is one file:

    magic 8 | bytes of weights u64 | BLAKE3 of key and weights 32 | zeros to 4096 | weights

Its name is the key: the model file, the layout of repacked weights, and the target. It is
written to a temporary file and renamed, so that concurrent processes and killed ones leave
whole entries or none; an entry that is not what it says is a miss and is written again.
Processes that map one entry share its memory. The folder is bounded: before an entry is
written, those unused for longest go.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from kinetic.runtime.cache_files import PART, mark_as_written, remove_if_abandoned
from kinetic.runtime.devices.mapping import FileMapping

DEFAULT_LIMIT = 32 << 30
"""Bytes that a cache folder may hold."""
SUFFIX = ".repacked"
_MAGIC = b"KNTCRP01"
_HEAD = struct.Struct("<8sQ32s")
_START = 4096
"""Where weights start: a page, so that they are aligned in memory."""
_WRITE = 64 << 20

Bytes = npt.NDArray[np.uint8]


def entry_key(*parts: str) -> str:
    """The name of an entry from everything its bytes depend on."""
    digest = blake3()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:40]


@dataclass(frozen=True)
class CacheEntry:
    """Where one model's repacked weights are kept. *Units*: `limit` in bytes."""

    folder: Path
    key: str
    limit: int = DEFAULT_LIMIT

    @property
    def path(self) -> Path:
        """The entry's file."""
        return self.folder / (self.key + SUFFIX)

    def find(self, nbytes: int, threads: int = 1) -> FileMapping | None:
        """The weights of a good entry; a bad one is removed. Marks the entry as used."""
        found = self.map(nbytes)
        if found and self._head(found.bytes, threads) != found.head[: _HEAD.size].tobytes():
            found = None
        with contextlib.suppress(OSError):
            if found is None:
                self.path.unlink(missing_ok=True)
            else:
                os.utime(self.path)
        return found

    def map(self, nbytes: int) -> FileMapping | None:
        """The weights of an entry of the right length, unchecked."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size != _START + nbytes or nbytes == 0:
                    return None
                return FileMapping(file.fileno(), _START)
        except (OSError, ValueError):
            return None

    def store(self, weights: Bytes, threads: int = 1) -> str | None:
        """Keep the weights; what went wrong, as a sentence, if they could not be kept.

        A folder that cannot be written costs time, never the answer.
        """
        nbytes = _START + len(weights)
        if nbytes > self.limit:
            return (
                f"the repacked weights take {nbytes / 2**30:.1f} GiB and their cache may hold "
                f"{self.limit / 2**30:.1f}; raise --repack-cache-limit to keep them"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(nbytes)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=f".{self.key}.", suffix=PART)
            try:
                with os.fdopen(handle, "wb", buffering=0) as file:
                    mark_as_written(file)
                    _write(file, self._head(weights, threads), weights)
                    # The lock is held until the rename: nobody takes it for litter.
                    os.replace(name, self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            return (
                f"the repacked weights could not be kept in {self.folder}: "
                f"{error.strerror or error}; this load goes on without"
            )
        return None

    def _head(self, weights: Bytes, threads: int) -> bytes:
        digest = blake3(self.key.encode(), max_threads=max(1, threads)).update(weights.data)
        return _HEAD.pack(_MAGIC, len(weights), digest.digest())

    def _make_room(self, nbytes: int) -> None:
        """Remove litter, then the entries that were used least recently, until it fits."""
        for part in self.folder.glob(f".*{PART}"):
            remove_if_abandoned(part)
        entries = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total = nbytes + sum(size for _, size, path in entries if path != self.path)
        for _, size, path in sorted(entries):
            if total <= self.limit:
                break
            if path != self.path:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                    total -= size


def _write(file: IO[bytes], head: bytes, weights: Bytes) -> None:
    # Written, not mapped: a full disk is then an error, where a mapping would be a signal.
    for piece in (memoryview(head.ljust(_START, b"\0")), weights.data):
        at = 0
        while at < len(piece):
            at += file.write(piece[at : at + _WRITE])
