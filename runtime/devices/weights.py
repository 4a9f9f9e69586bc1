"""The matrices of a program, repacked natively and in parallel at load.

The file's pages are let go slice by slice, so that a model is in memory once. The whole
result is one piece of memory in the order of `Program.packed`, so that it can also come
from the cache on disk (`runtime/repack_cache.py`), mapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kinetic.ir import cpu_abi as abi
from kinetic.ir.program import PackedWeight
from kinetic.ir.quant import FORMATS
from kinetic.runtime.devices.base import TensorSource
from kinetic.runtime.devices.mapping import FileMapping, lock
from kinetic.runtime.devices.mapping import Mapping as Memory
from kinetic.runtime.devices.pool import WorkerPool
from kinetic.runtime.repack_cache import CacheEntry

Progress = Callable[[str, int, int], None]
"""`progress(what, done, total)`, in bytes."""

_SLICE = 16 << 20
"""Bytes of a matrix repacked at a time, which bounds what is in memory twice."""
_ALIGN = 64


@dataclass(frozen=True)
class LoadOptions:
    """How weights get into memory.

    `mlock` keeps them there; `cache` is where the repacked form is kept on disk, and
    `notice` is told, in a sentence, when it could not be kept.
    """

    progress: Progress | None = None
    mlock: bool = False
    cache: CacheEntry | None = None
    notice: Callable[[str], None] | None = None


class PackedWeights:
    """Repacked matrices, and the address of each by its key.

    `read_raw` names the tensors that the program also reads as the file has them.

    *Raises* `ContextError` where `mlock` is refused.
    """

    def __init__(
        self,
        weights: Sequence[PackedWeight],
        source: TensorSource,
        functions: Mapping[str, int],
        pool: WorkerPool,
        options: LoadOptions,
        read_raw: Collection[str],
    ):
        self._source, self._functions, self._pool = source, functions, pool
        self._read_raw = frozenset(read_raw)
        starts, nbytes = [], 0
        for weight in weights:
            starts.append(nbytes)
            nbytes += -(-weight.nbytes // _ALIGN) * _ALIGN
        found = options.cache.find(nbytes, pool.threads) if options.cache else None
        self.cached = found is not None
        self.memory: Memory | FileMapping = found or Memory(nbytes, huge=True)
        if options.mlock:
            lock(self.memory)
        if found is None:
            self._repack_all(weights, starts, options)
        self.address = {
            weight.key: self.memory.address + start
            for weight, start in zip(weights, starts, strict=True)
        }

    def _repack_all(
        self, weights: Sequence[PackedWeight], starts: list[int], options: LoadOptions
    ) -> None:
        uses = Counter(weight.tensor for weight in weights)
        total, done = sum(weight.nbytes for weight in weights), 0
        for weight, start in zip(weights, starts, strict=True):
            self._repack_matrix(weight, self.memory.address + start)
            uses[weight.tensor] -= 1
            if uses[weight.tensor] == 0 and weight.tensor not in self._read_raw:
                self._source.release(weight.tensor)
            done += weight.nbytes
            if options.progress is not None:
                options.progress("load", done, total)
        if options.cache is not None:
            self._keep(options.cache, options)

    def _keep(self, cache: CacheEntry, options: LoadOptions) -> None:
        """Write the cache entry, and go on with its pages, which other processes share."""
        error = cache.store(self.memory.bytes, self._pool.threads)
        if error is not None:
            if options.notice is not None:
                options.notice(error)
            return
        mapped = cache.map(len(self.memory.bytes))
        if mapped is not None:
            if options.mlock:
                lock(mapped)
            self.memory = mapped

    def _repack_matrix(self, weight: PackedWeight, address: int) -> None:
        """Repack a matrix, or a part of each of a tensor's matrices one after the other."""
        (start, count), part = weight.rows, weight.part
        if part is None:
            self._repack(weight, start, count, address)
            return
        row_size = weight.nbytes // count
        for i in range(count // part.count):
            first = (start // part.count + i) * part.of + part.first
            self._repack(weight, first, part.count, address + i * part.count * row_size)

    def _repack(self, weight: PackedWeight, start: int, count: int, address: int) -> None:
        """Repack so many rows slice by slice, letting go of the file's pages as it goes."""
        fmt = FORMATS[weight.format_name]
        row_bytes = weight.columns // fmt.values * fmt.nbytes
        source = self._source.data(weight.tensor).ctypes.data + start * row_bytes
        group_bytes = weight.nbytes // -(-weight.rows[1] // abi.ROWS)
        step = max(1, _SLICE // row_bytes // abi.ROWS) * abi.ROWS
        op = np.zeros((1, abi.OP_SIZE // 8), np.int64)
        op[0, abi.OP_KERNEL // 8] = self._functions[weight.kernel]
        op[0, abi.OP_BARRIER // 8] = 1
        for row in range(0, count, step):
            rows = min(step, count - row)
            at = row * row_bytes
            args = [
                source + at,
                address + row // abi.ROWS * group_bytes,
                weight.columns // fmt.values,
                row_bytes,
                rows,
                -(-rows // abi.ROWS),
            ]
            op[0, abi.OP_ARGS // 8 : abi.OP_ARGS // 8 + len(args)] = args
            self._pool.run(op)
            first = start * row_bytes + at
            self._source.advise_dontneed(weight.tensor, first, first + rows * row_bytes)
