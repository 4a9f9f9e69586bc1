"""Blocks of 32 values with one scale, and plain floats: no search, one pass.

*Source*: ggml's `quantize_row_*_ref`.
"""

from __future__ import annotations

import math
import struct

import kinetic.ir.math as kmath
from kinetic.codegen.kernels.cpu.simd import I32, LANES, MathOn
from kinetic.codegen.targets.llvm_ir import Value
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat
from kinetic.quantize.encoders.lanes import TILE, Encoder, Reader, largest
from kinetic.quantize.encoders.search import importance_weights, steps, symmetric, with_minimum

BLOCK = 32
BELOW_HALF = 0.49999997
"""The largest float below 0.5: adding 0.5 itself would round 0.49999997 up."""


def q8_0(e: Encoder) -> None:
    """d = amax / 127, codes rounded half away from zero."""
    with e.tiles():
        (x,) = e.across(e.x, BLOCK)
        _, amax = largest(e, [x(j) for j in range(BLOCK)])
        d = e.div(amax, 127.0)
        inverses = e.scalars([e.inverse(d)])
        halves = e.scalars([e.f16_bits(d)])
        for b in range(LANES):
            e.put_half(halves[b], 34 * b)
            inverse = e.splat(inverses[b], LANES)
            for j in range(0, BLOCK, LANES):
                e.put_bytes(_away(e, e.along(BLOCK * b + j) * inverse), 34 * b + 2 + j)


def _away(e: Encoder, v: Value) -> Value:
    """The nearest integer, ties away from zero."""
    half = e.const(v.type, BELOW_HALF)
    return e.truncated(v + e.either(v.compare("olt", 0.0), e.negative(half), half))


def signed(e: Encoder, bits: int) -> None:
    """Q4_0 and Q5_0: the value of the greatest magnitude becomes the lowest code."""
    if e.weighted:
        _signed_weighted(e, bits)
        return
    top = 1 << bits - 1
    with e.tiles():
        (x,) = e.across(e.x, BLOCK)
        extreme, _ = largest(e, [x(j) for j in range(BLOCK)])
        d = e.div(extreme, float(-top))
        inverses, halves = e.scalars([e.inverse(d)]), e.scalars([e.f16_bits(d)])
        for b in range(LANES):
            inverse = e.splat(inverses[b], LANES)
            codes = [
                _up_to(e, e.truncated(e.along(BLOCK * b + j) * inverse + (top + 0.5)), 2 * top - 1)
                for j in range(0, BLOCK, LANES)
            ]
            put_block(e, b, [halves[b]], codes, bits)


def ranged(e: Encoder, bits: int) -> None:
    """Q4_1 and Q5_1: codes count from the least value up."""
    if e.weighted:
        _ranged_weighted(e, bits)
        return
    top = (1 << bits) - 1
    with e.tiles():
        (x,) = e.across(e.x, BLOCK)
        low, high = _range(e, x)
        d = e.div(high - low, float(top))
        inverses, lows = e.scalars([e.inverse(d)]), e.scalars([low])
        halves, offsets = e.scalars([e.f16_bits(d)]), e.scalars([e.f16_bits(low)])
        for b in range(LANES):
            inverse, least = e.splat(inverses[b], LANES), e.splat(lows[b], LANES)
            codes = []
            for j in range(0, BLOCK, LANES):
                code = e.truncated((e.along(BLOCK * b + j) - least) * inverse + 0.5)
                codes.append(_up_to(e, code, top) if bits == 4 else code & 0xFF)
            put_block(e, b, [halves[b], offsets[b]], codes, bits)


def _signed_weighted(e: Encoder, bits: int) -> None:
    """Q4_0 and Q5_0 with importance: the scale is searched for.

    *Source*: `quantize_row_q4_0_impl`.
    """
    top = 1 << bits - 1
    with e.tiles():
        x = e.across(e.x, BLOCK)
        (w,) = importance_weights(e, BLOCK, x, e.splat(e.arg["row_square"], LANES))
        found = symmetric(e, BLOCK, top, x[0], w)
        halves = e.scalars([e.f16_bits(found.scale)])
        factors, bases = e.scalars([found.factor]), e.scalars([found.base])
        for b in range(LANES):
            factor, base = e.splat(factors[b], LANES), e.splat(bases[b], LANES)
            codes = [
                e.level(factor * e.along(BLOCK * b + j), -top, top - 1) + base
                for j in range(0, BLOCK, LANES)
            ]
            put_block(e, b, [halves[b]], codes, bits)


def _ranged_weighted(e: Encoder, bits: int) -> None:
    """Q4_1 and Q5_1 with importance: scale and minimum are searched for.

    *Source*: `quantize_row_q4_1_impl`.
    """
    top = (1 << bits) - 1
    with e.tiles():
        x = e.across(e.x, BLOCK)
        (w,) = importance_weights(e, BLOCK, x, e.splat(e.arg["row_square"], LANES))
        factors = steps(-0.9, 0.05, 36, top)
        found = with_minimum(e, BLOCK, top, x[0], w, factors, absolute=False)
        halves = e.scalars([e.f16_bits(found.scale)])
        offsets = e.scalars([e.f16_bits(e.negative(found.minimum))])
        won, lows = e.scalars([found.factor]), e.scalars([found.low])
        for b in range(LANES):
            factor, low = e.splat(won[b], LANES), e.splat(lows[b], LANES)
            codes = [
                e.level(factor * (e.along(BLOCK * b + j) - low), 0, top)
                for j in range(0, BLOCK, LANES)
            ]
            put_block(e, b, [halves[b], offsets[b]], codes, bits)


def _range(e: Encoder, x: Reader) -> tuple[Value, Value]:
    big = 3.4028234663852886e38
    low, high = e.const(x(0).type, big), e.const(x(0).type, -big)
    for j in range(BLOCK):
        v = x(j)
        low = e.select(v.compare("olt", low), v, low)
        high = e.select(v.compare("ogt", high), v, high)
    return low, high


def _up_to(e: Encoder, codes: Value, top: int) -> Value:
    return e.minimum(codes, top)


def put_block(e: Encoder, b: int, halves: list[Value], codes: list[Value], bits: int) -> None:
    """A block of 4 or 5 bits: its f16s, the fifth bits if any, and nibbles j and j + 16."""
    nbytes = 2 * len(halves) + (4 if bits == 5 else 0) + BLOCK // 2
    at = nbytes * b
    for half in halves:
        e.put_half(half, at)
        at += 2
    if bits == 5:
        for chunk in codes:
            e.store(_mask(e, chunk, 4), e.out, at)
            at += 1
    for j in range(2):
        e.put_bytes((codes[j] & 0xF) | ((codes[j + 2] & 0xF) << 4), at + LANES * j)


def _mask(e: Encoder, codes: Value, bit: int) -> Value:
    """One bit of each of eight codes, as a byte."""
    bits = ((codes >> bit) & 1).cast("trunc", f"<{LANES} x i1>")
    return bits.cast("bitcast", "i8")


def mxfp4(e: Encoder) -> None:
    """A power of two for the block, and for each value the nearest of sixteen."""
    levels = codebook("MXFP4")
    table = e.table("log2_steps", b"".join(struct.pack("<i", step) for step in _log2_steps()))
    with e.tiles():
        (x,) = e.across(e.x, BLOCK)
        _, amax = largest(e, [x(j) for j in range(BLOCK)])
        for b, size in enumerate(e.scalars([amax])):
            exponent = _exponent(e, size, table)
            e.put_byte(exponent, 17 * b)
            small = e.const("i32", 0x00200000)
            small = e.binary("shl", small, e.minimum(exponent, 1))
            bits = e.select(exponent.compare("ult", 2), small, (exponent - 1) << 23)
            d = e.splat(bits.cast("bitcast", "float"), LANES)
            points = [d * float(value) for value in levels]
            codes = [
                _closest(e, e.along(BLOCK * b + j), points, levels) for j in range(0, BLOCK, LANES)
            ]
            for j in range(2):
                e.put_bytes(codes[j] | (codes[j + 2] << 4), 17 * b + 1 + LANES * j)


def codebook(name: str) -> tuple[int, ...]:
    """The levels that a format's codes name."""
    fmt = FORMATS[name]
    assert isinstance(fmt, BlockFormat) and fmt.codebook is not None
    return fmt.codebook


def _closest(e: Encoder, x: Value, points: list[Value], levels: tuple[int, ...]) -> Value:
    """The first of the points that are closest."""
    best, error = e.const(I32, 0), e.abs(points[0] - x)
    for i in range(1, len(points)):
        if levels[i] == 0:
            continue  # a second zero is never closer
        miss = e.abs(points[i] - x)
        better = miss.compare("olt", error)
        best, error = e.either(better, e.const(I32, i), best), e.select(better, miss, error)
    return best


def _exponent(e: Encoder, amax: Value, table: Value) -> Value:
    """floor(log2(amax)) - 2 + 127 as a byte, with log2 rounded to f32; 0 for 0."""
    tiny = amax.compare("olt", 2.0**-126)
    scaled = e.select(tiny, amax * 2.0**32, amax).cast("bitcast", "i32")
    exponent = scaled >> 23
    step = e.load("i32", table, (exponent & 0xFF).cast("zext", "i64") * 4)
    up = (scaled & 0x007FFFFF).compare("sge", step).cast("zext", "i32")
    exponent = exponent + up - e.either(tiny, e.const("i32", 34), e.const("i32", 2))
    return e.either(amax.compare("ogt", 0.0), exponent & 0xFF, e.const("i32", 0))


def _log2_steps() -> list[int]:
    """For each exponent of a float, the least mantissa whose log2 rounds to the next integer.

    Just below a power of two the rounded logarithm is that integer, and ggml takes its floor.
    """
    steps = []
    for biased in range(256):
        whole = biased - 127 + 1
        low, high = 0, 1 << 23
        while low < high and 0 < biased < 255:
            middle = (low + high) // 2
            log = math.log2(math.ldexp(1 + middle / 2**23, biased - 127))
            rounded = struct.unpack("<f", struct.pack("<f", log))[0]
            low, high = (low, middle) if rounded >= whole else (middle + 1, high)
        steps.append(high)
    return steps


def f16(e: Encoder) -> None:
    """Rounded to f16."""
    with e.tiles():
        for j in range(0, TILE, LANES):
            e.store(e.f16_bits(e.along(j)).cast("trunc", f"<{LANES} x i16>"), e.out, 2 * j)


def bf16(e: Encoder) -> None:
    """Rounded to bf16."""
    with e.tiles():
        for j in range(0, TILE, LANES):
            bits = kmath.f32_to_bf16_bits(MathOn(e), e.along(j))
            e.store(bits.cast("trunc", f"<{LANES} x i16>"), e.out, 2 * j)
