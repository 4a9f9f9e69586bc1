"""IQ4_NL and IQ4_XS: codes name one of sixteen uneven levels.

*Source*: ggml's `quantize_row_iq4_nl_impl`.
"""

from __future__ import annotations

import struct
from itertools import pairwise

from kinetic.codegen.kernels.cpu.simd import F32, I32, LANES
from kinetic.codegen.targets.llvm_ir import Value
from kinetic.quantize.encoders.lanes import TILE, TINY, Encoder, Reader, largest
from kinetic.quantize.encoders.search import tile_square
from kinetic.quantize.encoders.simple import BLOCK, codebook

LEVELS = codebook("IQ4_NL")
HALFWAY = [(a + b) / 2 for a, b in pairwise(LEVELS)]
"""Where the nearer level changes. ggml compares two distances; near a halfway point both are
exact in float32 for these levels, so that its answer is this comparison."""


def iq4_nl(e: Encoder) -> None:
    """A block is a group: f16 scale, 16 bytes of codes."""
    with e.tiles():
        (x,) = e.across(e.x, BLOCK)
        scale = _search(e, x, _weights(e, x))
        halves, inverses = e.scalars([e.f16_bits(scale)]), e.scalars([e.inverse(scale)])
        for b in range(LANES):
            e.put_half(halves[b], 18 * b)
            _put_codes(e, b, inverses[b], 18 * b + 2)


def iq4_xs(e: Encoder) -> None:
    """Eight groups of 32 with a signed 6-bit scale each."""
    with e.tiles():
        (x,) = e.across(e.x, BLOCK)
        scale = _search(e, x, _weights(e, x, block=TILE))
        extreme, _ = largest(e, e.scalars([scale]))
        d = e.div(e.negative(extreme), 32.0)
        e.put_half(e.f16_bits(d), 0)
        six = e.level(e.splat(e.inverse(d), LANES) * scale, -32, 31)
        inverses = e.scalars([e.inverse(e.splat(d, LANES) * e.to_float(six))])
        s = e.scalars([six + 32])
        high = s[0] >> 4
        for g in range(1, LANES):
            high = high | ((s[g] >> 4) << 2 * g)
        e.put_half(high, 2)
        for pair in range(4):
            e.put_byte((s[2 * pair] & 0xF) | ((s[2 * pair + 1] & 0xF) << 4), 4 + pair)
        for g in range(LANES):
            _put_codes(e, g, inverses[g], 8 + 16 * g)


def _weights(e: Encoder, x: Reader, block: int = BLOCK) -> Reader:
    """x^2, or the importance times the root of x^2 plus twice the block's mean square."""
    if not e.weighted:
        return e.kept([x(j) * x(j) for j in range(BLOCK)])
    (importance,) = e.across(e.importance, BLOCK)
    if block == BLOCK:
        total = e.const(F32, 0.0)
        for j in range(BLOCK):
            total = total + x(j) * x(j)
    else:
        total = e.splat(tile_square(e), LANES)
    square = total * (2.0 / block)
    return e.kept([importance(j) * e.sqrt(square + x(j) * x(j)) for j in range(BLOCK)])


def _search(e: Encoder, x: Reader, w: Reader) -> Value:
    """The scale of eight groups of 32."""
    extreme, size = largest(e, [x(j) for j in range(BLOCK)])

    def sums(factor: Value) -> tuple[Value, Value]:
        sum_qx = sum_q2 = e.const(F32, 0.0)
        for j in range(BLOCK):
            q, weight = _level(e, factor * x(j)), w(j)
            sum_qx = sum_qx + weight * q * x(j)
            sum_q2 = sum_q2 + weight * q * q
        return sum_qx, sum_q2

    first = e.div(e.negative(extreme), float(LEVELS[0]))
    sum_qx, sum_q2 = sums(e.div(1.0, first))
    scale = e.either(sum_q2.compare("ogt", 0.0), e.div(sum_qx, sum_q2), 0.0)
    tries = [float(i + LEVELS[0]) for i in range(-7, 8)]
    table = e.table("iq4_tries", b"".join(struct.pack("<f", t) for t in tries))
    with e.loop(0, len(tries), carry=[scale, scale * sum_qx]) as loop:
        scale, best = loop.carried
        factor = e.div(e.load_splat("float", LANES, table, loop.index * 4), extreme)
        sum_qx, sum_q2 = sums(factor)
        new = e.div(sum_qx, sum_q2)
        better = e.binary(
            "and",
            sum_q2.compare("ogt", 0.0),
            (sum_qx * sum_qx).compare("ogt", best * sum_q2),
        )
        loop.next = [e.select(better, new, scale), e.select(better, new * sum_qx, best)]
    return e.either(size.compare("olt", TINY), 0.0, loop.results[0])


def _level(e: Encoder, x: Value) -> Value:
    """The nearest level, as a float."""
    level = e.const(F32, float(LEVELS[0]))
    for halfway, following in zip(HALFWAY, LEVELS[1:], strict=True):
        level = e.either(x.compare("uge", halfway), float(following), level)
    return level


def _index(e: Encoder, x: Value) -> Value:
    """The number of the nearest level."""
    index = e.const(I32, 0)
    for halfway in HALFWAY:
        index = index + x.compare("uge", halfway).cast("zext", I32)
    return index


def _put_codes(e: Encoder, group: int, inverse: Value, at: int) -> None:
    """Codes of a group of 32: value j in the low nibble, j + 16 in the high one."""
    wide = e.splat(inverse, LANES)
    codes = [_index(e, e.along(BLOCK * group + j) * wide) for j in range(0, BLOCK, LANES)]
    for j in range(2):
        e.put_bytes(codes[j] | (codes[j + 2] << 4), at + LANES * j)
