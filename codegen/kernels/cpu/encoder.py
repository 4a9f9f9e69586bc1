"""Row operations of encoders: layer norm, a row added to all, their activations, pooling.

Attention over whole texts is `attention.py` with `HeadShape.texts`.
"""

from __future__ import annotations

from collections.abc import Callable

import kinetic.ir.math as kmath
from kinetic.codegen.kernels.cpu.rows import NORM_CHAINS
from kinetic.codegen.kernels.cpu.simd import F32, CpuFunction, Kernel, MathOn, lane_tree, tree
from kinetic.codegen.targets.llvm_ir import Value
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import STEP_OUT_ROWS, STEP_OUTPUTS, STEP_POSITIONS, STEP_ROWS

ACTIVATIONS: dict[str, Callable[[MathOn, Value], Value]] = {
    "gelu_erf": kmath.gelu_erf,
    "tanh": kmath.tanh,
}
"""What `activation` knows, by the names of the ops."""


def _row_sum(k: CpuFunction, width: Value, term: Callable[[Value], Value]) -> Value:
    """Sum of `term(byte offset)` over a row in the chains of norms; a scalar."""
    chains = k.alloca(F32, NORM_CHAINS // 8)
    for c in range(NORM_CHAINS // 8):
        k.store(k.zero(F32), chains, 32 * c, align=32)
    with k.loop(0, width, 32) as i:
        chain = k.gep(chains, i.index & 96)
        k.store(k.load(F32, chain, align=32) + term(i.index), chain, align=32)
    return lane_tree(k, tree([k.load(F32, chains, 32 * c, align=32) for c in range(4)]))


def layer_norm_name(*, biased: bool) -> str:
    """`layer_norm[_bias]`."""
    return "layer_norm" + ("_bias" if biased else "")


def layer_norm(target: CpuTarget, *, biased: bool) -> Kernel:
    """`layer_norm[_bias]`: each row around its mean, over its spread.

    Arguments: x, weights, bias, out, bytes of a row, f32 1/n, f32 eps, address of the row count.
    """
    k = Kernel(layer_norm_name(biased=biased), target)
    x, w, bias, out, width = (k.argument(t) for t in ("ptr", "ptr", "ptr", "ptr", "i64"))
    inverse, eps = k.argument("float"), k.argument("float")
    rows = k.load("i64", k.argument("ptr"), align=8)
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        row, made = k.gep(x, t.index * width), k.gep(out, t.index * width)
        mean = k.splat(_row_sum(k, width, lambda o: k.load(F32, row, o)) * inverse, 8)

        def off(offset: Value, row: Value = row, mean: Value = mean) -> Value:
            return k.load(F32, row, offset) - mean

        def square(offset: Value, off: Callable[[Value], Value] = off) -> Value:
            d = off(offset)
            return d * d

        spread = _row_sum(k, width, square) * inverse + eps
        factor = kmath.rsqrt(MathOn(k), k.splat(spread, 8))
        with k.loop(0, width, 32) as i:
            y = (off(i.index) * factor) * k.load(F32, w, i.index)
            k.store(y + k.load(F32, bias, i.index) if biased else y, made, i.index)
    k.ret()
    return k


def add_row(target: CpuTarget) -> Kernel:
    """`add_row`: the same row added to each.

    Arguments: x, the row, out, bytes of a row, address of the row count.
    """
    k = Kernel("add_row", target)
    x, w, out, width = (k.argument(t) for t in ("ptr", "ptr", "ptr", "i64"))
    rows = k.load("i64", k.argument("ptr"), align=8)
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        row, made = k.gep(x, t.index * width), k.gep(out, t.index * width)
        with k.loop(0, width, 32) as i:
            k.store(k.load(F32, row, i.index) + k.load(F32, w, i.index), made, i.index)
    k.ret()
    return k


def activation(target: CpuTarget, op: str) -> Kernel:
    """`map_<op>`. Arguments: x, out, bytes of a row, address of the row count."""
    k = Kernel(f"map_{op}", target)
    x, out, width = (k.argument(t) for t in ("ptr", "ptr", "i64"))
    rows = k.load("i64", k.argument("ptr"), align=8)
    low, high = k.share((rows * width).udiv(32))
    with k.loop(low, high) as i:
        at = i.index << 5
        k.store(ACTIVATIONS[op](MathOn(k), k.load(F32, x, at)), out, at)
    k.ret()
    return k


def pool(target: CpuTarget, kind: str) -> Kernel:
    """`pool_<kind>`: the rows of each text, which ends in a wanted row, as one.

    Arguments: x, out, bytes of a row, step block.
    """
    k = Kernel(f"pool_{kind}", target)
    x, out, width, step = (k.argument(t) for t in ("ptr", "ptr", "i64", "ptr"))
    texts = k.load("i64", step, STEP_OUTPUTS, align=8)
    chosen = k.load("ptr", step, STEP_OUT_ROWS, align=8)
    positions = k.load("ptr", step, STEP_POSITIONS, align=8)
    vectors = width.udiv(32)
    low, high = k.share(texts * vectors)
    with k.loop(low, high) as unit:
        text, column = unit.index.udiv(vectors), unit.index.urem(vectors) << 5
        last = k.load("i32", chosen, text * 4, align=4).cast("sext", "i64")
        before = k.load("i32", positions, last * 4, align=4)
        first = last - before.cast("sext", "i64")
        source = k.gep(x, column)
        if kind == "first":
            y = k.load(F32, source, first * width)
        else:
            with k.loop(first, last + 1, carry=[k.zero(F32)]) as row:
                row.next = [row.carried[0] + k.load(F32, source, row.index * width)]
            count = (before + 1).cast("sitofp", "float")
            y = row.results[0] * kmath.recip(MathOn(k), k.splat(count, 8))
        k.store(y, k.gep(out, text * width), column)
    k.ret()
    return k


def embed_positions(target: CpuTarget) -> Kernel:
    """`embed_positions`: the row of an f32 table at each row's position.

    Arguments: table, out, bytes of a row, step block.
    """
    k = Kernel("embed_positions", target)
    table, out, width, step = (k.argument(t) for t in ("ptr", "ptr", "i64", "ptr"))
    rows = k.load("i64", step, STEP_ROWS, align=8)
    positions = k.load("ptr", step, STEP_POSITIONS, align=8)
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        position = k.load("i32", positions, t.index * 4, align=4).cast("sext", "i64")
        source, made = k.gep(table, position * width), k.gep(out, t.index * width)
        with k.loop(0, width, 32) as i:
            k.store(k.load(F32, source, i.index), made, i.index)
    k.ret()
    return k
