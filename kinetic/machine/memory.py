"""Memory: how much, how much of it is free, and how fast it is read."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BYTES = 192 << 20  # read by all threads together: beyond any last-level cache worth naming
_ROUNDS = 16


class Memory(NamedTuple):
    """Bytes this process may use at all, and bytes that are free now."""

    total: int
    available: int


def memory(root: Path = Path("/sys/fs/cgroup")) -> Memory:
    """The machine's memory, or its control group's where that is less."""
    import psutil

    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    try:
        limit = int((root / "memory.max").read_text())
        used = int((root / "memory.current").read_text())
        total, available = min(total, limit), min(available, max(limit - used, 0))
    except (OSError, ValueError):
        pass
    return Memory(total, available)


def read_speed(threads: int, nbytes: int = _BYTES, rounds: int = _ROUNDS) -> float:
    """How fast `threads` threads read memory together.

    The upper quartile of a few rounds: other programs slow some of them, and on shared machines
    one is now and then far faster than what lasts.

    *Units*: bytes a second.
    """
    share = nbytes // threads // 4096 * 4096
    # Written once, or every page would be the same page of zeros.
    blocks = [np.ones(share // 4, np.float32) for _ in range(threads)]
    speeds = sorted(share * threads / _seconds(blocks) for _ in range(rounds))
    return speeds[3 * rounds // 4]


def _seconds(blocks: list[NDArray[np.float32]]) -> float:
    """Seconds until every block was read, one thread each."""
    start = threading.Barrier(len(blocks) + 1)

    def read(block: NDArray[np.float32]) -> None:
        start.wait()
        block.max()  # numpy lets other threads run meanwhile, and keeps up with memory

    workers = [threading.Thread(target=read, args=(block,)) for block in blocks]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began
