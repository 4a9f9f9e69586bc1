"""What blocks that predict further tokens read: the vectors given with rows, joined rows."""

from __future__ import annotations

from kinetic.codegen.kernels.cpu.simd import F32, Kernel
from kinetic.codegen.targets.llvm_ir import Value
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import STEP_HIDDEN, STEP_ROWS


def hidden(target: CpuTarget) -> Kernel:
    """`hidden`: copy the vectors given with the rows into the arena.

    Arguments: out, bytes of a row, step block.
    """
    k = Kernel("hidden", target)
    out, width, step = k.argument("ptr"), k.argument(), k.argument("ptr")
    rows = k.load("i64", step, STEP_ROWS, align=8)
    given = k.load("ptr", step, STEP_HIDDEN, align=8)
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        _copy(k, k.gep(given, t.index * width), k.gep(out, t.index * width), width)
    k.ret()
    return k


def concat(target: CpuTarget) -> Kernel:
    """`concat`: the row of a, then that of b.

    Arguments: a, b, out, bytes of a row of a, of b, address of the row count.
    """
    k = Kernel("concat", target)
    a, b, out = (k.argument("ptr") for _ in range(3))
    first, second = k.argument(), k.argument()
    rows = k.load("i64", k.argument("ptr"), align=8)
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        place = k.gep(out, t.index * (first + second))
        _copy(k, k.gep(a, t.index * first), place, first)
        _copy(k, k.gep(b, t.index * second), k.gep(place, first), second)
    k.ret()
    return k


def _copy(k: Kernel, source: Value, target: Value, nbytes: Value) -> None:
    with k.loop(0, nbytes, 32) as i:
        k.store(k.load(F32, source, i.index), target, i.index)
