"""What this machine can do at most, measured by three small generated kernels.

- read: all threads add up 400 MiB, the most that memory delivers;
- float: multiply, then add, on vectors that stay in registers, as the contract's chains do;
- dot: the integer dot product of this CPU's class, in registers too.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from kinetic.codegen.kernels.cpu.pool import pool
from kinetic.codegen.kernels.cpu.simd import F32, I8, I16, I32, Kernel, multiply_add16
from kinetic.codegen.targets.llvm_ir import Value
from kinetic.codegen.targets.llvm_x86 import CpuTarget, compile_object, link, module_text
from kinetic.ir import cpu_abi as abi
from kinetic.runtime.devices.mapping import Mapping
from kinetic.runtime.devices.pool import WorkerPool, aligned

_READ_BYTES = 400 << 20
_TURNS = 4_000_000
_CHAINS = 12
"""Independent sums: enough to hide an instruction's latency, few enough for 16 registers."""


class Limits(NamedTuple):
    """Units: bytes a second; multiply-adds a second."""

    read: float
    floats: float
    dots: float


def measure(target: CpuTarget, threads: int, repetitions: int) -> Limits:
    """The best of a few interleaved runs of each kernel."""
    kernels = {"limit_read": _read, "limit_float": _float, "limit_dot": _dot}
    functions = [*pool(), *(make(name, target) for name, make in kernels.items())]
    names = [*kernels, "pool_run", "pool_worker"]
    addresses = link(compile_object(target, module_text(target, functions)), names)
    memory = Mapping(_READ_BYTES, huge=True)
    memory.bytes[:] = 1
    # One cache line a thread: the vectors that the register kernels start from, and results.
    lines = aligned(64 * 4 * threads)
    lines.view(np.float32)[:] = 0.5  # far from subnormal numbers, which are slow
    plans = {}
    for name in kernels:
        plan = plans[name] = np.zeros((1, abi.OP_SIZE // 8), np.int64)
        plan[0, abi.OP_KERNEL // 8], plan[0, abi.OP_BARRIER // 8] = addresses[name], 1
        count = _READ_BYTES if name == "limit_read" else _TURNS
        first = abi.OP_ARGS // 8
        plan[0, first : first + 3] = memory.address, count, lines.ctypes.data
    workers = WorkerPool(addresses, threads)
    best = dict.fromkeys(kernels, float("inf"))
    for _ in range(repetitions):
        for name, plan in plans.items():
            started = time.perf_counter()
            workers.run(plan)
            best[name] = min(best[name], time.perf_counter() - started)
    workers.close()
    per_dot = 8 if target.dot == "generic" else 32
    turns = _TURNS * _CHAINS * threads
    return Limits(
        _READ_BYTES / best["limit_read"],
        turns * 8 / best["limit_float"],
        turns * per_dot / best["limit_dot"],
    )


def _read(name: str, target: CpuTarget) -> Kernel:
    """This thread's share of the memory, eight vectors a turn."""
    k = Kernel(name, target)
    memory, nbytes, out = k.argument("ptr"), k.argument(), k.argument("ptr")
    low, high = k.share(nbytes >> 8)
    with k.loop(low, high, carry=[k.zero(I32)] * 8) as turn:
        at = k.gep(memory, turn.index << 8)
        for line in range(0, 256, 64):
            k.prefetch(at, line + 2048)
        turn.next = [sum_ + k.load(I32, at, 32 * i) for i, sum_ in enumerate(turn.carried)]
    return _end(k, turn.results, out)


def _float(name: str, target: CpuTarget) -> Kernel:
    k, turns, out = _register_kernel(name, target)
    a, b = k.load(F32, out), k.load(F32, out, 32)
    with k.loop(0, turns, carry=[k.zero(F32)] * _CHAINS) as turn:
        turn.next = [x * a + b for x in turn.carried]
    return _end(k, [x.cast("bitcast", I32) for x in turn.results], out)


def _dot(name: str, target: CpuTarget) -> Kernel:
    k, turns, out = _register_kernel(name, target)
    codes, values = k.load(I8, out), k.load(I8, out, 32)
    ones = k.const(I16, 1)

    def step(total: Value) -> Value:
        if target.dot == "vnni":
            return k.call("llvm.x86.avx512.vpdpbusd.256", I32, total, codes, values)
        if target.dot == "maddubs":  # of the running total, or the product would leave the loop
            pairs = k.call("llvm.x86.avx2.pmadd.ub.sw", I16, codes, total.cast("bitcast", I8))
            return total + multiply_add16(k, pairs, ones)
        return total * codes.cast("bitcast", I32) + values.cast("bitcast", I32)

    with k.loop(0, turns, carry=[k.zero(I32)] * _CHAINS) as turn:
        turn.next = [step(x) for x in turn.carried]
    return _end(k, turn.results, out)


def _register_kernel(name: str, target: CpuTarget) -> tuple[Kernel, Value, Value]:
    k = Kernel(name, target)
    _, turns, lines = k.argument("ptr"), k.argument(), k.argument("ptr")
    return k, turns, k.gep(lines, k.ith << 8)


def _end(k: Kernel, results: list[Value], out: Value) -> Kernel:
    """Store the sum of the results, so that nothing of the loop is dead."""
    total = results[0]
    for value in results[1:]:
        total = total + value
    k.store(total, out, 64)
    k.ret()
    return k
