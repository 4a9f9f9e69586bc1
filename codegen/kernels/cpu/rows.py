"""Row operations: embeddings, norms, activations, quantization and the fused forms.

A row of activations is contiguous f32; widths are multiples of eight. Work is split
over rows, or over (row, block) where a single row is long enough to share.
"""

from __future__ import annotations

from collections.abc import Callable

import kinetic.ir.math as kmath
from kinetic.codegen.kernels.cpu.dot import look_up
from kinetic.codegen.kernels.cpu.repack import BlockReader, run_codes, scale_bits
from kinetic.codegen.kernels.cpu.simd import (
    F32,
    I32,
    CpuFunction,
    Kernel,
    MathOn,
    lane_max,
    lane_tree,
    load_bf16,
    load_f16,
    tree,
)
from kinetic.codegen.targets.llvm_ir import Value, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import (
    ACT32_SCALE,
    ACT32_SUM,
    ACT256_SCALE,
    ACT256_SUMS16,
    ACT256_SUMS32,
    STEP_OUT_ROWS,
    STEP_OUTPUTS,
    STEP_POSITIONS,
    STEP_ROWS,
    STEP_TOKENS,
    act_stride,
)
from kinetic.ir.quant.base import RUN, BlockFormat, FloatFormat, Format

ZERO_BELOW = (127 - 100) << 23
"""Bits of 2^-100: a block whose largest magnitude is smaller is all zeros."""
INFINITY = 0x7F800000
NORM_CHAINS = 32

Source = Callable[[Value, int], Value]
"""(byte offset within the row, lanes) -> so many values from there on."""


def wide_lanes(k: CpuFunction) -> int:
    """Lanes of long elementwise chains.

    A vector wider than the machine's becomes several instructions side by side, which
    hides the latency of one long chain of dependent ones.
    """
    return 32 if k.target.registers >= 32 else 16


def quantize_block(k: CpuFunction, block: int, source: Source, start: Value, out: Value) -> None:
    """Quantize `block` values (docs/arithmetic.md section 3) and store them with their sums.

    `start` is the byte offset of the block within the row, `out` its activation block.
    """
    vectors, lanes = block // 8, wide_lanes(k)
    staged = k.alloca(F32, vectors)
    b = MathOn(k)
    wide = vec(lanes, "i32")
    with k.loop(0, block // lanes, carry=[k.zero(wide)]) as i:
        offset = i.index * (4 * lanes)
        x = source(start + offset, lanes)
        k.store(x, staged, offset, align=32)
        size = x.cast("bitcast", wide) & 0x7FFFFFFF
        seen = i.carried[0]
        i.next = [k.select(size.compare("sgt", seen), size, seen)]
    largest = k.splat(lane_max(k, i.results[0]), 8)
    amax = b.unbits(largest)
    tiny = largest.compare("slt", ZERO_BELOW)
    broken = largest.compare("sge", INFINITY)
    d = amax * k.const(F32, 1 / 127)
    r = kmath.recip_mid(b, d)  # in range wherever it is used
    zero, nan = k.zero(F32), b.unbits(k.const(I32, 0x7FC00000))
    d = k.select(broken, nan, k.select(tiny, zero, d))
    usable = k.select(broken, zero, k.select(tiny, zero, r))
    keep = k.select(broken, k.zero(I32), k.const(I32, -1))

    def quantized(index: Value | int) -> Value:
        x = k.load(F32, staged, index * 32, align=32)
        q = kmath.rne_int(b, x * usable)
        q = k.select(q.compare("slt", 127), q, k.const(I32, 127))
        return k.select(q.compare("sgt", -127), q, k.const(I32, -127)) & keep

    scale_at = ACT32_SCALE if block == 32 else ACT256_SCALE
    k.store(d.at(0), out, scale_at)
    bytes8 = vec(8, "i8")
    with k.loop(0, vectors // 4) as part:
        halves = []
        for half in range(2):
            pair = []
            for j in range(2):
                index = part.index * 4 + (2 * half + j)
                q = quantized(index)
                k.store(q.cast("trunc", bytes8), out, index * 8)
                pair.append(q)
            halves.append(lane_tree(k, pair[0] + pair[1]))
        total = halves[0] + halves[1]
        if block == 32:
            k.store(total, out, ACT32_SUM)
        else:
            for half in range(2):
                at = part.index * 4 + (ACT256_SUMS16 + 2 * half)
                k.store(halves[half].cast("trunc", "i16"), out, at)
            k.store(total.cast("trunc", "i16"), out, part.index * 2 + ACT256_SUMS32)


def norm_factor(
    k: CpuFunction, row: Value, width: Value | int, inverse: Value, eps: Value
) -> Value:
    """`rsqrt(mean(x^2) + eps)` of one row, in every lane; `width` in bytes."""
    chains = k.alloca(F32, NORM_CHAINS // 8)
    for c in range(NORM_CHAINS // 8):
        k.store(k.zero(F32), chains, 32 * c, align=32)
    with k.loop(0, width, 32) as i:
        chain = k.gep(chains, i.index & 96)
        x = k.load(F32, row, i.index)
        k.store(k.load(F32, chain, align=32) + x * x, chain, align=32)
    sums = tree([k.load(F32, chains, 32 * c, align=32) for c in range(NORM_CHAINS // 8)])
    mean = lane_tree(k, sums) * inverse + eps
    return kmath.rsqrt(MathOn(k), k.splat(mean, 8))


def norm_name(*, weighted: bool, block: int | None, heads: bool = False, each: bool = False) -> str:
    """`norm[_unit][_heads[_each]][_quantize_B]`."""
    name = "norm" + ("" if weighted else "_unit")
    name += ("_heads_each" if each else "_heads") if heads else ""
    return name + (f"_quantize_{block}" if block else "")


def norm(
    target: CpuTarget,
    *,
    weighted: bool,
    block: int | None,
    heads: bool = False,
    each: bool = False,
) -> Kernel:
    """The RMS norm of each row, or with `heads` of each head of it, left as f32 or quantized;
    with `each` every head has weights of its own.

    Arguments: x, weights, out, bytes of a row, f32 1/n, f32 eps, address of the row count;
    with `heads` the bytes are a head's, and their number follows.
    """
    k = Kernel(norm_name(weighted=weighted, block=block, heads=heads, each=each), target)
    x, w, out, width = (k.argument(t) for t in ("ptr", "ptr", "ptr", "i64"))
    inverse, eps = k.argument("float"), k.argument("float")
    rows = k.load("i64", k.argument("ptr"), align=8)
    count = k.argument() if heads else k.const("i64", 1)
    if heads:
        rows = rows * count
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        row = k.gep(x, t.index * width)
        factor = norm_factor(k, row, width, inverse, eps)
        by_head = k.gep(w, t.index.urem(count) * width) if each else w

        def normed(
            offset: Value,
            lanes: int,
            row: Value = row,
            factor: Value = factor,
            w: Value = by_head,
        ) -> Value:
            type_ = vec(lanes, "float")
            by = factor if lanes == 8 else k.splat(factor.at(0), lanes)
            y = k.load(type_, row, offset) * by
            return y * k.load(type_, w, offset) if weighted else y

        if block:
            _quantize_row(k, block, normed, width, rows, t.index, out)
        else:
            target_row = k.gep(out, t.index * width)
            with k.loop(0, width, 32) as i:
                k.store(normed(i.index, 8), target_row, i.index)
    k.ret()
    return k


def _quantize_row(
    k: CpuFunction, block: int, source: Source, width: Value, rows: Value, row: Value, out: Value
) -> None:
    stride = act_stride(block)
    blocks = width.udiv(4 * block)
    with k.loop(0, blocks) as b:
        target = k.gep(out, (b.index * rows + row) * stride)
        quantize_block(k, block, source, b.index * (4 * block), target)


ACTIVATIONS: dict[str, Callable[[MathOn, Value], Value]] = {
    "silu": kmath.silu,
    "gelu_tanh": kmath.gelu_tanh,
    "sigmoid": kmath.sigmoid,
}


def _elementwise_block(
    k: Kernel, block: int, sources: Callable[[Value], Source], width: Value, rows: Value, out: Value
) -> None:
    """Quantize rows whose values are computed on the fly, split over (row, block)."""
    blocks = width.udiv(4 * block)
    low, high = k.share(rows * blocks)
    with k.loop(low, high) as unit:
        row, b = unit.index.udiv(blocks), unit.index.urem(blocks)
        target = k.gep(out, (b * rows + row) * act_stride(block))
        quantize_block(k, block, sources(row * width), b * (4 * block), target)


def quantize(target: CpuTarget, block: int) -> Kernel:
    """`quantize_B`. Arguments: x, out, bytes of a row, address of the row count."""
    k = Kernel(f"quantize_{block}", target)
    x, out, width = k.argument("ptr"), k.argument("ptr"), k.argument()
    rows = k.load("i64", k.argument("ptr"), align=8)

    def sources(row: Value) -> Source:
        base = k.gep(x, row)
        return lambda offset, lanes: k.load(vec(lanes, "float"), base, offset)

    _elementwise_block(k, block, sources, width, rows, out)
    k.ret()
    return k


def gated(k: CpuFunction, act: str, gate: Value, up: Value, offset: Value, lanes: int) -> Value:
    """`act(gate) * up`, or the gate of that name, of so many values from `offset` on."""
    type_, b = vec(lanes, "float"), MathOn(k, lanes)
    g, u = k.load(type_, gate, offset), k.load(type_, up, offset)
    if act == "swiglu_oai":
        return kmath.swiglu_oai(b, g, u)
    return ACTIVATIONS[act](b, g) * u


def glu(target: CpuTarget, act: str, block: int | None) -> Kernel:
    """`glu_<act>[_quantize_B]`: `act(gate) * up`.

    Arguments: gate, up, out, bytes of a row, address of the row count.
    """
    k = Kernel(f"glu_{act}" + (f"_quantize_{block}" if block else ""), target)
    gate, up, out, width = (k.argument(t) for t in ("ptr", "ptr", "ptr", "i64"))
    rows = k.load("i64", k.argument("ptr"), align=8)

    def sources(row: Value) -> Source:
        g, u = k.gep(gate, row), k.gep(up, row)
        return lambda offset, lanes: gated(k, act, g, u, offset, lanes)

    if block:
        _elementwise_block(k, block, sources, width, rows, out)
    else:
        _map_vectors(k, sources(k.const("i64", 0)), rows * width, out)
    k.ret()
    return k


def _map_vectors(k: Kernel, source: Source, nbytes: Value, out: Value) -> None:
    low, high = k.share(nbytes.udiv(32))
    with k.loop(low, high) as i:
        offset = i.index << 5
        k.store(source(offset, 8), out, offset)


def elementwise(target: CpuTarget, op: str) -> Kernel:
    """`map_<op>` for ops that no pass fused: copy, add, mul, scale, softcap, silu, sigmoid, ...

    Arguments: first, second, out, bytes of a row, f32 constant, f32 its reciprocal,
    address of the row count. Unused ones are zero.
    """
    k = Kernel(f"map_{op}", target)
    x, y, out, width = (k.argument(t) for t in ("ptr", "ptr", "ptr", "i64"))
    c, inverse = k.argument("float"), k.argument("float")
    rows = k.load("i64", k.argument("ptr"), align=8)
    b = MathOn(k)
    forms: dict[str, Source] = {
        "copy": lambda o, n: k.load(F32, x, o),
        "add": lambda o, n: k.load(F32, x, o) + k.load(F32, y, o),
        "mul": lambda o, n: k.load(F32, x, o) * k.load(F32, y, o),
        "scale": lambda o, n: k.load(F32, x, o) * k.splat(c, 8),
        "silu": lambda o, n: kmath.silu(b, k.load(F32, x, o)),
        "sigmoid": lambda o, n: kmath.sigmoid(b, k.load(F32, x, o)),
        "gelu_tanh": lambda o, n: kmath.gelu_tanh(b, k.load(F32, x, o)),
        "softcap": lambda o, n: (
            k.splat(c, 8) * kmath.tanh(b, k.load(F32, x, o) * k.splat(inverse, 8))
        ),
    }
    _map_vectors(k, forms[op], rows * width, out)
    k.ret()
    return k


def temper(target: CpuTarget) -> Kernel:
    """`temper`: each row times what the contexts behind it make of the scale.

    Arguments: x, out, bytes of a row, f32 scale, positions of a context, step block.
    """
    k = Kernel("temper", target)
    x, out, width, scale, every, step = (
        k.argument(t) for t in ("ptr", "ptr", "i64", "float", "i64", "ptr")
    )
    rows = k.load("i64", step, STEP_ROWS, align=8)
    positions = k.load("ptr", step, STEP_POSITIONS, align=8)
    by, b = k.splat(scale, 8), MathOn(k)
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        position = k.load("i32", positions, t.index * 4, align=4).cast("sext", "i64")
        behind = k.splat(position.udiv(every).cast("sitofp", "float"), 8)
        source, to = k.gep(x, t.index * width), k.gep(out, t.index * width)
        with k.loop(0, width, 32) as i:
            k.store(kmath.temper(b, k.load(F32, source, i.index), behind, by), to, i.index)
    k.ret()
    return k


def take_outputs(target: CpuTarget) -> Kernel:
    """`take_outputs`: copy the rows whose outputs are wanted.

    Arguments: x, out, bytes of a row, step block.
    """
    k = Kernel("take_outputs", target)
    x, out, width, step = (k.argument(t) for t in ("ptr", "ptr", "i64", "ptr"))
    rows = k.load("i64", step, STEP_OUTPUTS, align=8)
    chosen = k.load("ptr", step, STEP_OUT_ROWS, align=8)
    low, high = k.share(rows)
    with k.loop(low, high) as r:
        row = k.load("i32", chosen, r.index * 4, align=4).cast("sext", "i64")
        source, target_row = k.gep(x, row * width), k.gep(out, r.index * width)
        with k.loop(0, width, 32) as i:
            k.store(k.load(F32, source, i.index), target_row, i.index)
    k.ret()
    return k


def embed(target: CpuTarget, fmt: Format) -> Kernel:
    """`embed_<format>`: dequantized rows of the file's own bytes.

    Arguments: table, bytes of a table row, out, values of a row, step block.
    """
    k = Kernel(f"embed_{fmt.name.lower()}", target)
    table, table_row, out, values = (k.argument(t) for t in ("ptr", "i64", "ptr", "i64"))
    step = k.argument("ptr")
    rows = k.load("i64", step, STEP_ROWS, align=8)
    tokens = k.load("ptr", step, STEP_TOKENS, align=8)
    low, high = k.share(rows)

    with k.loop(low, high) as t:
        token = k.load("i32", tokens, t.index * 4, align=4).cast("sext", "i64")
        source = k.gep(table, token * table_row)
        target_row = k.gep(out, t.index * (values * 4))
        if isinstance(fmt, FloatFormat):
            with k.loop(0, values, 8) as i:
                value = _load_floats(k, fmt, source, i.index * fmt.nbytes)
                k.store(value, target_row, i.index << 2)
        else:
            with k.loop(0, values.udiv(fmt.values)) as b:
                block = k.gep(source, b.index * fmt.nbytes)
                address = k.gep(target_row, b.index * (4 * fmt.values))
                for run in range(fmt.values // RUN):
                    k.store(_dequantized_run(k, fmt, block, run), address, 4 * RUN * run)
    k.ret()
    return k


def _load_floats(k: Kernel, fmt: FloatFormat, source: Value, offset: Value) -> Value:
    if fmt.name == "F32":
        return k.load(F32, source, offset)
    return load_f16(k, source, offset) if fmt.name == "F16" else load_bf16(k, source, offset)


def _dequantized_run(k: Kernel, fmt: BlockFormat, block: Value, run: int) -> Value:
    """Sixteen dequantized values of a raw block, by the format's own expression."""
    wide_i, wide_f = vec(RUN, "i32"), vec(RUN, "float")
    reader, group = BlockReader(k, block), run * RUN // fmt.group_values

    def half(offset: int | None) -> Value | None:
        if offset is None:
            return None
        return k.splat(load_f16(k, block, offset, 1).at(0), RUN)

    def integer(value: Value) -> Value:
        return k.splat(value.cast("sitofp", "float"), RUN)

    codes = run_codes(k, fmt, block, run)
    if fmt.dot_table is not None:
        codes = look_up(k, codes, fmt.dot_table)
    q = codes.cast("zext", wide_i) - fmt.dot_zero
    s = integer(fmt.scale(reader, group)) if fmt.scale else None
    m = integer(fmt.minimum(reader, group)) if fmt.minimum else None
    d = half(fmt.d) if _plain(fmt) else k.splat(_scale(k, fmt, block, run), RUN)
    return fmt.dequantize(d, half(fmt.dmin), s, m, q.cast("sitofp", wide_f))


def _plain(fmt: BlockFormat) -> bool:
    """Whether the scale is the f16 at byte `d` and nothing else."""
    return fmt.d_bits is None and not fmt.d_e8m0 and fmt.d_factor == 1


def _scale(k: Kernel, fmt: BlockFormat, block: Value, run: int) -> Value:
    """The scale of a run of a raw block, whatever its form."""
    bits = scale_bits(k, fmt, block, run * RUN // fmt.update_values)
    wide = bits.cast("zext", "i32")
    if fmt.d_e8m0:
        d = (wide << 16).cast("bitcast", "float")
    elif k.target.has_f16c:
        d = bits.cast("bitcast", "half").cast("fpext", "float")
    else:
        d = kmath.f16_bits_to_f32(MathOn(k, 0), wide)
    return d if fmt.d_factor == 1 else d * fmt.d_factor
