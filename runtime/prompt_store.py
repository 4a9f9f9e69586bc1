"""Prompt states on disk: one file for each page of a text, found by what it says and where.

    magic 8 | bytes of the page u64 | of the state u64 | BLAKE3 of key and content 32 | content

A file's name is its key: a chain of BLAKE3 over all that the words of the page depend on, which
is the model, the arithmetic, the layout, the user's salt, and every token up to the page's end.
So a file of another model or another user cannot be found at all, and one that was cut short
or damaged does not have its checksum: it is a miss.

Files are written by a thread of their own, renamed when they are whole, and bounded: those
unused for longest go first. Several processes may share the folder.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from kinetic.runtime.cache_files import PART, mark_as_written, remove_if_abandoned

DISK_LIMIT = 2 << 30
"""Bytes that the folder may hold."""
PENDING_LIMIT = 128 << 20
"""Bytes that may wait to be written; what does not fit is not kept."""
SUFFIX = ".warm"
_MAGIC = b"KNTCWS01"
_HEAD = struct.Struct("<8sQQ32s")
_SLACK = 16
"""Part of the limit that is freed at once, so that the folder is not listed for every file."""

Bytes = npt.NDArray[np.uint8]


def chain_key(before: bytes, *parts: bytes) -> bytes:
    """The key of what comes after `before`."""
    digest = blake3(before)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


class PromptStore:
    """A folder of prompt states. *Units*: `limit` in bytes.

    A folder that cannot be read or written costs time, never an answer.
    """

    def __init__(self, folder: Path, limit: int = DISK_LIMIT):
        self.folder, self.limit = folder, limit
        self._jobs: queue.SimpleQueue[tuple[bytes, Bytes, Bytes] | list[bytes] | None] = (
            queue.SimpleQueue()
        )
        self._pending = 0
        self._total: int | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="kinetic-warm", daemon=True)
        self._thread.start()

    def load(self, key: bytes, page_bytes: int, state_bytes: int) -> tuple[Bytes, Bytes] | None:
        """The page and the state (empty if it has none) of a good file; None for a miss."""
        path = self._path(key)
        try:
            raw = np.fromfile(path, np.uint8)
        except OSError:
            return None
        content = raw[_HEAD.size :]
        sizes = (page_bytes, len(content) - page_bytes)
        whole = len(raw) >= _HEAD.size and sizes[1] in (0, state_bytes)
        if not whole or raw[: _HEAD.size].tobytes() != _head(key, content, sizes):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        return content[:page_bytes], content[page_bytes:]

    def has_room(self) -> bool:
        """Whether more may be given to `save` now."""
        return self._pending < PENDING_LIMIT

    def save(self, key: bytes, page: Bytes, state: Bytes) -> None:
        """Write a file, some time later."""
        with self._lock:
            self._pending += len(page) + len(state)
        self._jobs.put((key, page, state))

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark files as used, the last one as used last."""
        self._jobs.put(list(keys))

    def close(self) -> None:
        """Write what is waiting, and stop."""
        self._jobs.put(None)
        self._thread.join()

    # -- the writer's thread -------------------------------------------------------------
    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, list):
                for key in job:
                    with contextlib.suppress(OSError):
                        os.utime(self._path(key))
                continue
            key, page, state = job
            with contextlib.suppress(OSError):  # a full or read-only disk: it is not kept
                self._write(key, page, state)
            with self._lock:
                self._pending -= len(page) + len(state)

    def _write(self, key: bytes, page: Bytes, state: Bytes) -> None:
        content = np.concatenate([page, state])
        nbytes = _HEAD.size + len(content)
        path = self._path(key)
        if path.exists() or nbytes > self.limit:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room(nbytes)
        # mkstemp gives files that only their owner can read: they say what was asked.
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=PART)
        try:
            with os.fdopen(handle, "wb") as file:
                mark_as_written(file)
                file.write(_head(key, content, (len(page), len(state))))
                file.write(content.data)
                file.flush()
                os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._total = (self._total or 0) + nbytes

    def _make_room(self, nbytes: int) -> None:
        """Where the folder would become too large, remove what was unused for longest."""
        if self._total is not None and self._total + nbytes <= self.limit:
            return
        for part in self.folder.glob(f".*{PART}"):
            remove_if_abandoned(part)
        files = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        self._total = sum(size for _, size, _ in files)
        if self._total + nbytes <= self.limit:
            return
        for _, size, path in sorted(files):
            if self._total + nbytes <= self.limit - self.limit // _SLACK:
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                self._total -= size

    def _path(self, key: bytes) -> Path:
        return self.folder / (key.hex() + SUFFIX)


def _head(key: bytes, content: Bytes, sizes: tuple[int, int]) -> bytes:
    digest = blake3(key)
    digest.update(content.data)
    return _HEAD.pack(_MAGIC, *sizes, digest.digest())
