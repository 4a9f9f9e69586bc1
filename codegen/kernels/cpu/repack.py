"""Repacking: GGUF's block bytes into the interleaved layout, natively, once at load.

The code reads a format only through its declaration (`ir/quant`): planes and runs give
the codes of sixteen values as one vector, eight rows of them are transposed by dwords,
and the planes of the packed layout are put together from the result.
"""

from __future__ import annotations

from typing import Any

from kinetic.codegen.kernels.cpu.layout import GROUPS32, VECTOR, Packed, plane_widths
from kinetic.codegen.kernels.cpu.simd import I8, I16, I32, Kernel
from kinetic.codegen.targets.llvm_ir import Function, Value, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import ROWS
from kinetic.ir.quant.base import (
    RUN,
    AnyPlane,
    BitMask,
    BlockFormat,
    Digits,
    FloatFormat,
    Format,
    Grid,
    Mask8,
)


class BlockReader:
    """`ir.quant.base.Reader` over one raw block in memory: integers as i32."""

    def __init__(self, k: Function, block: Value):
        self._k, self._block = k, block

    def u8(self, offset: int) -> Any:
        return self._k.load("i8", self._block, offset).cast("zext", "i32")

    def s8(self, offset: int) -> Any:
        return self._k.load("i8", self._block, offset).cast("sext", "i32")


def run_codes(k: Function, fmt: BlockFormat, block: Value, run: int) -> Value:
    """The unsigned codes of one run of a raw block, as <16 x i8>."""
    total = None
    for plane in fmt.planes:
        part = _plane_codes(k, fmt, plane, block, run)
        total = part if total is None else total | part
    assert total is not None
    return total ^ fmt.flip if fmt.flip else total


def _plane_codes(k: Function, fmt: BlockFormat, plane: AnyPlane, block: Value, run: int) -> Value:
    """One plane's bits of a run, in their place."""
    bytes16 = vec(RUN, "i8")
    if isinstance(plane, BitMask):
        if plane.bits == 1:
            bits = k.load("i16", block, plane.offset + 2 * run).cast("bitcast", vec(RUN, "i1"))
            return bits.cast("zext", bytes16) << plane.place
        assert plane.bits == 2, "a run of 16 codes of two bits is one i32"
        wide = k.load_splat("i32", RUN, block, plane.offset + 4 * run)
        wide = wide >> k.vector("i32", range(0, 32, 2))
        return (wide.cast("trunc", bytes16) & 3) << plane.place
    if isinstance(plane, Digits):
        offset, factors = plane.at(run)
        width = RUN // len(factors)
        part = k.load(vec(width, "i8"), block, offset)
        if width < RUN:
            part = k.shuffle(part, [i % width for i in range(RUN)])
        part = part * k.vector("i8", [_signed8(f) for f in factors for _ in range(width)])
        wide = (part.cast("zext", vec(RUN, "i16")) * plane.radix) >> 8
        return wide.cast("trunc", bytes16) << plane.place
    if isinstance(plane, Grid):
        return _grid_codes(k, fmt, plane, block, run) << plane.place
    if isinstance(plane, Mask8):
        reader = BlockReader(k, block)
        low, high = plane.at(reader, 2 * run), plane.at(reader, 2 * run + 1)
        both = ((low & 255) | ((high & 255) << 8)).cast("trunc", "i16")
        return both.cast("bitcast", vec(RUN, "i1")).cast("zext", bytes16) << plane.place
    offset, shift = plane.at(run)
    part = k.load(bytes16, block, offset)
    if plane.bits < 8:
        part = ((part >> shift) & ((1 << plane.bits) - 1)) << plane.place
    return part


def _signed8(value: int) -> int:
    """A byte as LLVM spells an i8."""
    return value - 256 if value > 127 else value


def _grid_codes(k: Function, fmt: BlockFormat, grid: Grid, block: Value, run: int) -> Value:
    """The entries of a table that make one run, side by side."""
    reader, count = BlockReader(k, block), RUN // grid.width
    table = k.table(f"grid_{fmt.name.lower()}", grid.table)
    word = f"i{8 * grid.width}"
    words = k.zero(vec(count, word))
    for lane in range(count):
        index = grid.index(reader, count * run + lane).cast("zext", "i64")
        entry = k.load(word, table, index * grid.width)
        words = k.emit(
            f"insertelement {words.type} {words.ref}, {word} {entry.ref}, i32 {lane}", words.type
        )
    return words.cast("bitcast", vec(RUN, "i8"))


def scale_bits(k: Function, fmt: BlockFormat, block: Value, j: int) -> Value:
    """The scale of update `j` of a raw block, as bits of an f16; of e8m0, of a bf16."""
    if fmt.d_bits is not None:
        bits: Value = fmt.d_bits(BlockReader(k, block), j)
        return bits.cast("trunc", "i16")
    if not fmt.d_e8m0:
        return k.load("i16", block, fmt.d)
    e = k.load("i8", block, fmt.d).cast("zext", "i16")
    tiny = k.const("i16", 0x20) << (e & 1)  # 2^-128 and 2^-127 are subnormal
    return k.select(e.compare("ult", 2), tiny, (e - 1) << 7)


def _transposed(k: Kernel, rows: list[Value]) -> list[Value]:
    """Eight i32[8] rows to eight i32[8] columns."""
    for span in (1, 2, 4):
        following = list(rows)
        for i in range(ROWS):
            if i & span:
                continue
            low = [j if not j & span else 8 + (j ^ span) for j in range(8)]
            high = [j ^ span if not j & span else 8 + j for j in range(8)]
            following[i] = k.shuffle(rows[i], low, rows[i + span])
            following[i + span] = k.shuffle(rows[i], high, rows[i + span])
        rows = following
    return rows


def _store_codes(k: Kernel, fmt: BlockFormat, groups: list[Value], out: Value) -> None:
    """Pack the codes of eight k-groups into planes."""
    offset = 0
    for width, place in plane_widths(fmt.bits):
        mask = (1 << width) - 1
        for v in range(width):
            total = None
            for group in range(v, GROUPS32, width):
                code = groups[group].cast("bitcast", I8)
                shift = width * (group // width)
                if width < 8:
                    wide = ((code >> place) & mask).cast("bitcast", I16) << shift
                    code = wide.cast("bitcast", I8)
                total = code if total is None else total | code
            assert total is not None
            k.store(total, out, offset + VECTOR * v)
        offset += VECTOR * width


def _repack_blocks(
    fmt: BlockFormat,
    k: Kernel,
    src: Value,
    dst: Value,
    blocks: Value,
    row_bytes: Value,
    rows: Value,
    group: Value,
) -> None:
    packed = Packed(fmt)
    # Codes pass through a small buffer, [row][value], so that rows and parts are loops
    # and the code stays small enough to compile in milliseconds.
    buffer = k.alloca("i8", ROWS * fmt.values)
    with k.loop(0, blocks) as b:
        out = k.gep(dst, (group * blocks + b.index) * (packed.nbytes * fmt.parts))
        with k.loop(0, ROWS) as row:
            # Rows past the end repeat the last one: finite numbers that nobody reads.
            source = k.minimum(group * ROWS + row.index, rows - 1)
            block = k.gep(src, source * row_bytes + b.index * fmt.nbytes)
            _copy_scales(fmt, packed, k, block, out, row.index * 2)
            codes = k.gep(buffer, row.index * fmt.values)
            for run in range(fmt.values // RUN):
                k.store(run_codes(k, fmt, block, run), codes, RUN * run)
        with k.loop(0, fmt.values // 32) as part:
            column = k.gep(buffer, part.index * 32)
            codes8 = [k.load(I32, column, row * fmt.values) for row in range(ROWS)]
            stride = packed.codes32 if fmt.parts == 1 else packed.nbytes
            at = k.gep(out, part.index * stride + packed.codes)
            _store_codes(k, fmt, _transposed(k, codes8), at)


def _copy_scales(
    fmt: BlockFormat, packed: Packed, k: Kernel, block: Value, out: Value, column: Value
) -> None:
    """One row's float scales, integer scales and minima; `column` is twice the row."""
    target = k.gep(out, column)
    for j in range(fmt.parts * fmt.updates):
        part, update = divmod(j, fmt.updates)
        k.store(scale_bits(k, fmt, block, j), target, part * packed.nbytes + 16 * update)
    if fmt.dmin is not None:
        k.store(k.load("i16", block, fmt.dmin), target, packed.dmin)
    reader = BlockReader(k, block)
    for declared, base in ((fmt.scale, packed.scales), (fmt.minimum, packed.minima)):
        if declared is None:
            continue
        for j in range(fmt.groups):
            value = declared(reader, j).cast("trunc", "i8")
            k.store(value, target, base + 16 * (j // 2) + j % 2)


def _repack_floats(
    fmt: FloatFormat,
    k: Kernel,
    src: Value,
    dst: Value,
    columns: Value,
    row_bytes: Value,
    rows: Value,
    group: Value,
) -> None:
    scalar = "i32" if fmt.nbytes == 4 else "i16"
    with k.loop(0, columns) as column:
        at = k.gep(dst, (group * columns + column.index) * (ROWS * fmt.nbytes))
        for row in range(ROWS):
            index = k.minimum(group * ROWS + row, rows - 1)
            value = k.load(scalar, src, index * row_bytes + column.index * fmt.nbytes)
            k.store(value, at, row * fmt.nbytes)


def repack(fmt: Format, target: CpuTarget) -> list[Function]:
    """The operation `repack_<format>`.

    Arguments: source, destination, blocks (or columns) of a row, bytes of a row, rows,
    row groups.
    """
    k = Kernel(f"repack_{fmt.name.lower()}", target)
    src, dst = k.argument("ptr"), k.argument("ptr")
    blocks, row_bytes, rows, groups = (k.argument() for _ in range(4))
    low, high = k.share(groups)
    with k.loop(low, high) as group:
        if isinstance(fmt, BlockFormat):
            _repack_blocks(fmt, k, src, dst, blocks, row_bytes, rows, group.index)
        else:
            _repack_floats(fmt, k, src, dst, blocks, row_bytes, rows, group.index)
    k.ret()
    return [k]
