"""The Python side of the native worker pool (`codegen/kernels/cpu/pool.py`)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kinetic.errors import InternalError
from kinetic.ir import cpu_abi as abi
from kinetic.runtime.cpus import usable_cpus

SPINS = 60_000
"""Polls of the epoch before a worker sleeps: about a millisecond."""


class WorkerPool:
    """Threads that run plans. `run(plan)` returns when every thread is done.

    Workers are pinned one to a CPU when there are enough CPUs: an unpinned worker that
    shares a CPU with a busy neighbour holds everybody up at each barrier.
    """

    def __init__(self, functions: Mapping[str, int], threads: int):
        self.threads = threads
        self._control = aligned(abi.pool_size(threads))
        self._words = self._control.view(np.int64)
        self._words[abi.POOL_THREADS // 8] = threads
        self._words[abi.POOL_SPINS // 8] = SPINS
        self._counters: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        address = self._control.ctypes.data
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions["pool_run"])
        worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(functions["pool_worker"])
        cpus = usable_cpus()
        self._cpus = cpus if 1 < threads <= len(cpus) and hasattr(os, "sched_setaffinity") else []
        self._lock = threading.Lock()
        self._process = os.getpid()
        # Daemon threads: an abandoned pool must not keep the process alive.
        self._workers = [
            threading.Thread(
                target=_enter,
                args=(worker, address, i, self._cpus),
                daemon=True,
                name=f"kinetic-worker-{i}",
            )
            for i in range(1, threads)
        ]
        for thread in self._workers:
            thread.start()
        self._stop = weakref.finalize(
            self, _stop, self._run, self._control, self._words, self._workers
        )

    def run(self, plan: npt.NDArray[np.int64]) -> None:
        """Run a plan: operation records as int64 [n, OP_SIZE / 8].

        Work counters are bound here, so a plan is an array that may be kept and changed.

        *Raises* `InternalError` where the workers are not there: after `close`, and in a
        process forked from the one that started them.
        """
        if not self._stop.alive:
            raise InternalError("the worker pool is closed; load the model again")
        if os.getpid() != self._process:
            raise InternalError(
                "the worker threads stayed in the process that loaded the model; load it again "
                "after a fork, or start processes by spawning"
            )
        with self._lock:
            if len(self._counters) < len(plan):
                self._counters = np.zeros(len(plan), np.int64)
            base = self._counters.ctypes.data
            if plan[0, abi.OP_COUNTER // 8] != base:
                plan[:, abi.OP_COUNTER // 8] = base + 8 * np.arange(len(plan))
            words = self._words
            words[abi.POOL_COUNTERS // 8] = base
            words[abi.POOL_OPS // 8] = plan.ctypes.data
            words[abi.POOL_COUNT // 8] = len(plan)
            # The caller is thread 0. It is pinned for the run only: threads and processes
            # that it starts later must not inherit a single CPU.
            if self._cpus:
                _pin(self._cpus[:1])
            try:
                self._run(self._control.ctypes.data)
            finally:
                if self._cpus:
                    _pin(self._cpus)

    def close(self) -> None:
        """Stop the workers."""
        self._stop()


def _pin(cpus: list[int]) -> None:
    """Let the calling thread run on these CPUs only."""
    with contextlib.suppress(OSError):  # the mask may have shrunk since it was read
        os.sched_setaffinity(0, cpus)


def _enter(worker: object, address: int, index: int, cpus: list[int]) -> None:
    if cpus:
        _pin([cpus[index]])
    worker(address, index)  # type: ignore[operator]


def _stop(
    run: object,
    control: npt.NDArray[np.uint8],
    words: npt.NDArray[np.int64],
    workers: list[threading.Thread],
) -> None:
    words[abi.POOL_STOP // 8] = 1
    words[abi.POOL_COUNT // 8] = 0
    run(control.ctypes.data)  # type: ignore[operator]
    for thread in workers:
        if thread is not threading.current_thread():
            thread.join(timeout=5)


def aligned(nbytes: int, align: int = 64) -> npt.NDArray[np.uint8]:
    """Zeroed bytes whose address is a multiple of `align`."""
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]
