"""The integer dot of one packed block with one block of quantized activations.

The contract asks for exact int32 sums in any order, so each class takes the
instructions it likes best:

- `vnni`: `vpdpbusd` multiplies u8 by s8, adds four products and accumulates in i32.
- `maddubs`: `vpmaddubsw` adds pairs into i16, which must not overflow: codes up to
  `c` allow `32767 // (254 c)` additions before a `vpmaddwd` widens to i32 (and applies
  the group's scale at no cost). Eight-bit codes (Q8_0, IQ4_NL's codebook) allow none: the
  sign of the weight moves to the activation instead.
- `generic`: widened multiplies, for any x86-64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinetic.codegen.kernels.cpu.layout import GROUPS32, VECTOR, Packed, plane_widths
from kinetic.codegen.kernels.cpu.simd import (
    I8,
    I16,
    I32,
    CpuFunction,
    RowGroups,
    multiply_add16,
)
from kinetic.codegen.targets.llvm_ir import Value, lanes_of, vec


def unpack32(k: CpuFunction, packed: Packed, block: RowGroups, part: Value | int) -> list[Value]:
    """The codes of 32 values of the block's rows, as eight vectors of bytes.

    `part` numbers the 32 values within the block.
    """
    base = block.move(part * packed.codes32 + packed.codes)
    codes: list[Value | None] = [None] * GROUPS32
    offset = 0
    for width, place in plane_widths(packed.fmt.bits):
        vectors = [base.load(I8, offset + VECTOR * v) for v in range(width)]
        offset += VECTOR * width
        for group in range(GROUPS32):
            bits = _bits(k, vectors[group % width], width, width * (group // width), place)
            before = codes[group]
            codes[group] = bits if before is None else before | bits
    table = packed.fmt.dot_table
    return [c if table is None else look_up(k, c, table) for c in codes if c is not None]


def look_up(k: CpuFunction, codes: Value, table: tuple[int, ...]) -> Value:
    """Bytes of a table of up to sixteen by code: a byte shuffle, or selects by the code's bits."""
    lanes = lanes_of(codes.type)
    padded = [*table, *[0] * (16 - len(table))]
    shuffle = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}.get(lanes)
    if k.target.dot != "generic" and shuffle:
        return k.call(shuffle, codes.type, k.vector("i8", padded * (lanes // 16)), codes)
    found = [k.const(codes.type, value) for value in padded[: 1 << (len(table) - 1).bit_length()]]
    bit = 1
    while len(found) > 1:
        odd = (codes & bit).compare("ne", 0)
        found = [k.select(odd, b, a) for a, b in zip(found[::2], found[1::2], strict=True)]
        bit <<= 1
    return found[0]


def _bits(k: CpuFunction, vector: Value, width: int, shift: int, place: int) -> Value:
    """Bits `shift .. shift+width` of every byte, moved to bit `place`."""
    if width == 8:
        return vector
    if shift != place:  # there is no byte shift: move 16-bit lanes, the mask cleans up
        wide = vector.cast("bitcast", vec(lanes_of(vector.type) // 2, "i16"))
        wide = wide >> (shift - place) if shift > place else wide << (place - shift)
        vector = wide.cast("bitcast", vector.type)
    return vector & (((1 << width) - 1) << place)


def broadcast_codes(
    k: CpuFunction, activations: Value, offset: Value | int, type_: str = I8
) -> Value:
    """Four activation bytes in every dword lane of a vector of bytes."""
    dwords = k.load_splat("i32", lanes_of(type_) // 4, activations, offset)
    return dwords.cast("bitcast", type_)


@dataclass(frozen=True)
class PairScales:
    """The integer scales (or minima) of two neighbouring groups, as i16[rows][2]."""

    k: CpuFunction
    pair: Value

    def both(self, which: int) -> Value:
        """One group's scale in both i16 of each row's dword, for `vpmaddwd`."""
        return self.k.shuffle(
            self.pair, [(i & ~1) | which for i in range(lanes_of(self.pair.type))]
        )

    def dword(self, which: int, *, signed: bool) -> Value:
        """One group's scale as i32[rows]."""
        wide = self.pair.cast("bitcast", vec(lanes_of(self.pair.type) // 2, "i32"))
        if which:
            return wide.ashr(16) if signed else wide >> 16
        return (wide << 16).ashr(16) if signed else wide & 0xFFFF


def load_pair(block: RowGroups, base: int, pair: Value | int, *, signed: bool) -> PairScales:
    """Scales or minima of groups `2 pair` and `2 pair + 1` of a packed block."""
    raw = block.load(vec(16, "i8"), pair * 16 + base)
    wide = raw.cast("sext" if signed else "zext", vec(lanes_of(raw.type), "i16"))
    return PairScales(block.k, wide)


def _vpdpbusd(k: CpuFunction, total: Value, codes: Value, activations: Value) -> Value:
    """`total` plus four products of u8 by s8 in every dword."""
    bits = 8 * lanes_of(codes.type)
    return k.call(f"llvm.x86.avx512.vpdpbusd.{bits}", total.type, total, codes, activations)


Scale = tuple[PairScales, int, bool] | None
"""A group's integer scale: the pair that holds it, which of the two, signed or not."""


def pair_sums(top: int) -> int:
    """Products of codes up to `top` with pairs of activations that fit one i16."""
    return 32767 // (254 * top)


def returns_centred(k: CpuFunction, top: int) -> bool:
    """Whether `dot_run` already subtracts the zero point, 128, of codes up to `top`."""
    return k.target.dot == "maddubs" and pair_sums(top) == 0


def dot_run(
    k: CpuFunction,
    top: int,
    codes: list[Value],
    activations: Value,
    offset: Value | int,
    scale: Scale = None,
) -> Value:
    """Sum of `code * activation` over k-groups, times the group's scale: i32[rows].

    `codes` are the vectors of consecutive k-groups, `top` the largest code and
    `offset` the byte of the first activation.
    """
    return _DOTS[k.target.dot](k, top, codes, activations, offset, scale)


def dot_tile(
    k: CpuFunction,
    top: int,
    codes: list[list[Value]],
    activations: list[Value],
    offset: Value | int,
    scales: list[Scale],
    starts: list[Value] | None = None,
) -> list[list[Value]]:
    """`dot_run` of each row group with each row of activations: `[group][row]`.

    `starts` is added to each row's unscaled sums, which costs nothing on `vnni`.

    For `vnni` the sums are built side by side: each is a chain of dependent
    instructions, and a core's scheduler is too small to look past one chain to the next.
    """
    if k.target.dot != "vnni":
        dots = [
            [dot_run(k, top, c, a, offset, s) for a in activations]
            for c, s in zip(codes, scales, strict=True)
        ]
        if starts is None:
            return dots
        return [[d + s for d, s in zip(row, starts, strict=True)] for row in dots]
    zero = k.zero(_sums_type(codes[0][0]))
    totals = [list(starts or [zero] * len(activations)) for _ in codes]
    for i in range(len(codes[0])):
        for t, row in enumerate(activations):
            a = broadcast_codes(k, row, offset + 4 * i, codes[0][i].type)
            for g, group in enumerate(codes):
                totals[g][t] = _vpdpbusd(k, totals[g][t], group[i], a)
    return [[_scaled(total, s) for total in row] for row, s in zip(totals, scales, strict=True)]


def _sums_type(codes: Value) -> str:
    """The type of the sums of a vector of codes: an i32 for each row."""
    return vec(lanes_of(codes.type) // 4, "i32")


def _scaled(total: Value, scale: Scale) -> Value:
    if scale is None:
        return total
    pairs, which, signed = scale
    return total * pairs.dword(which, signed=signed)


def _dot_vnni(
    k: CpuFunction, top: int, codes: list[Value], act: Value, offset: Value | int, scale: Scale
) -> Value:
    total = k.zero(_sums_type(codes[0]))
    for i, code in enumerate(codes):
        total = _vpdpbusd(k, total, code, broadcast_codes(k, act, offset + 4 * i, code.type))
    return _scaled(total, scale)


def _dot_maddubs(
    k: CpuFunction, top: int, codes: list[Value], act: Value, offset: Value | int, scale: Scale
) -> Value:
    if returns_centred(k, top):
        return _scaled(_dot_by_sign(k, codes, act, offset), scale)
    limit = pair_sums(top)
    multiplier = k.const(I16, 1) if scale is None else scale[0].both(scale[1])
    total = None
    for first in range(0, len(codes), limit):
        sums = None
        for i in range(first, min(first + limit, len(codes))):
            a = broadcast_codes(k, act, offset + 4 * i)
            pairs = k.call("llvm.x86.avx2.pmadd.ub.sw", I16, codes[i], a)
            sums = pairs if sums is None else sums + pairs
        assert sums is not None
        wide = multiply_add16(k, sums, multiplier)
        total = wide if total is None else total + wide
    assert total is not None
    return total


def _dot_by_sign(k: CpuFunction, codes: list[Value], act: Value, offset: Value | int) -> Value:
    """Eight-bit codes: |code - 128| times the activation with the weight's sign."""
    total = k.zero(I32)
    for i, code in enumerate(codes):
        a = broadcast_codes(k, act, offset + 4 * i)
        signed = code ^ -128
        moved = k.call("llvm.x86.avx2.psign.b", I8, a, signed)
        size = k.call("llvm.abs.v32i8", I8, signed, flags="i1 false")
        pairs = k.call("llvm.x86.avx2.pmadd.ub.sw", I16, size, moved)
        total = total + multiply_add16(k, pairs, k.const(I16, 1))
    return total


def _dot_generic(
    k: CpuFunction, top: int, codes: list[Value], act: Value, offset: Value | int, scale: Scale
) -> Value:
    total = k.zero(I32)
    for i, code in enumerate(codes):
        a = broadcast_codes(k, act, offset + 4 * i)
        products = code.cast("zext", vec(32, "i32")) * a.cast("sext", vec(32, "i32"))
        for lanes in (32, 16):
            even = k.shuffle(products, list(range(0, lanes, 2)))
            odd = k.shuffle(products, list(range(1, lanes, 2)))
            products = even + odd
        total = total + products
    return _scaled(total, scale)


_DOTS: dict[str, Callable[[CpuFunction, int, list[Value], Value, Value | int, Scale], Value]] = {
    "vnni": _dot_vnni,
    "maddubs": _dot_maddubs,
    "generic": _dot_generic,
}
