"""Memory from the system: zeroed and private, or a file's bytes; locked on demand."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError, UnsupportedError

_MLOCK_ONFAULT = 1


class Mapping:
    """Zeroed memory from the system, resident only where it is touched.

    `huge` asks for huge pages: weights are read from end to end for every token, and
    small pages would cost a miss in the address cache every 4 KiB.
    """

    def __init__(self, nbytes: int, *, huge: bool = False):
        if hasattr(mmap, "MAP_PRIVATE"):  # Python's default is shared memory
            self._map = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            self._map = mmap.mmap(-1, max(nbytes, 1))
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a hint; kernels without it say EINVAL
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = self.bytes.ctypes.data


class FileMapping:
    """An open file's bytes from `start` on, and its head; shared by all who map it."""

    def __init__(self, fileno: int, start: int):
        self._map = mmap.mmap(fileno, 0, access=mmap.ACCESS_READ)
        whole = np.frombuffer(self._map, np.uint8)
        self.head, self.bytes = whole[:start], whole[start:]
        self.address = self.bytes.ctypes.data


def lock(memory: Mapping | FileMapping) -> None:
    """Keep memory from ever being swapped out, for as long as it is mapped.

    *Raises* `ContextError` where the process may not lock so much, `UnsupportedError`
    where the system has no such call.
    """
    if os.name == "nt":
        raise UnsupportedError("--mlock is not supported on Windows; leave it out")
    libc = ctypes.CDLL(None, use_errno=True)
    address, nbytes = ctypes.c_void_p(memory.address), ctypes.c_size_t(len(memory.bytes))
    if isinstance(memory, Mapping) and hasattr(libc, "mlock2"):
        # New memory is locked page by page as repacking threads touch it: mlock would
        # first have one thread touch all of it.
        if libc.mlock2(address, nbytes, ctypes.c_int(_MLOCK_ONFAULT)) == 0:
            return
        if ctypes.get_errno() != errno.ENOSYS:
            raise _refusal(len(memory.bytes), ctypes.get_errno())
    if libc.mlock(address, nbytes) != 0:
        raise _refusal(len(memory.bytes), ctypes.get_errno())


def _refusal(nbytes: int, code: int) -> ContextError:
    """What to do about a lock that the system refused."""
    need = f"the weights take {nbytes / 2**20:.0f} MiB"
    allowed = _lock_limit()
    if allowed is not None and allowed < nbytes:
        return ContextError(
            f"--mlock: {need} and this process may lock {allowed / 2**20:.0f} MiB; raise the "
            "limit (ulimit -l unlimited, or LimitMEMLOCK=infinity in a systemd unit) or leave "
            "--mlock out"
        )
    return ContextError(
        f"--mlock: {need} and the system would not lock them ({os.strerror(code)}); free some "
        "memory or leave --mlock out"
    )


def _lock_limit() -> int | None:
    """Bytes this process may lock, None without a limit."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
