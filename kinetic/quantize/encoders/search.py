"""Searches for the scale of a group, over eight groups at once.

Each lane does what ggml does for one group: the same float32 operations in the same order.
A branch becomes a choice in every lane. Codes are not kept during a search: the step that won
gives them again, from the factor it multiplied with.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kinetic.codegen.kernels.cpu.simd import F32, I32, LANES
from kinetic.codegen.targets.llvm_ir import Value
from kinetic.quantize.encoders.lanes import TILE, TINY, Encoder, Reader, largest

single = np.float32


@dataclass(frozen=True)
class Range:
    """`x = scale * code - minimum`: what a search found, and how it came to its codes.

    Codes of the search are `nearest(factor * (x - low))`, held in bounds.
    """

    scale: Value
    minimum: Value
    factor: Value
    low: Value


@dataclass(frozen=True)
class Symmetric:
    """`x = scale * code`: codes of the search are `nearest(factor * x)`, held in bounds, plus
    `base`."""

    scale: Value
    factor: Value
    base: Value


def with_minimum(
    e: Encoder,
    n: int,
    top: int,
    x: Reader,
    w: Reader,
    factors: Iterable[np.float32],
    *,
    absolute: bool,
) -> Range:
    """Scale and minimum of `n` values for codes from 0 to `top`.

    Tries `factor / (max - min)` as codes a unit, for each of `factors`; for the codes of each
    solves for the scale and minimum with the least weighted error, of squares or `absolute`.

    *Source*: `make_qkx2_quants`, `make_qkx3_quants`.
    """
    low = high = x(0)
    sum_w = w(0)
    sum_x = sum_w * x(0)
    for j in range(1, n):
        v, weight = x(j), w(j)
        low = e.select(v.compare("olt", low), v, low)
        high = e.select(v.compare("ogt", high), v, high)
        sum_w = sum_w + weight
        sum_x = sum_x + weight * v
    low = e.either(low.compare("ogt", 0.0), 0.0, low)
    flat = high.compare("ole", low)
    first_low = low
    first = e.div(float(top), high - low)
    scale = e.div(1.0, first)

    def error_of(codes: Callable[[int], Value], scale: Value, low: Value) -> Value:
        total = e.const(F32, 0.0)
        for j in range(n):
            miss = scale * codes(j) + low - x(j)
            total = total + w(j) * (e.abs(miss) if absolute else miss * miss)
        return total

    def coded(factor: Value, low: Value) -> Callable[[int], Value]:
        return lambda j: e.to_float(e.level(factor * (x(j) - low), 0, top))

    error = error_of(coded(first, low), scale, low)
    table = [struct.pack("<f", factor) for factor in factors]
    steps = e.table(f"factors_{n}_{top}_{len(table)}", b"".join(table))
    carry = [error, scale, low, first, first_low]
    with e.loop(0, len(table), carry=carry) as loop:
        error, scale, low, won, won_low = loop.carried
        factor = e.div(e.load_splat("float", 8, steps, loop.index * 4), high - low)
        sum_l = sum_l2 = sum_xl = e.const(F32, 0.0)
        codes = [coded(factor, low)(j) for j in range(n)]
        for j in range(n):
            weighted = w(j) * codes[j]
            sum_l = sum_l + weighted
            sum_l2 = sum_l2 + weighted * codes[j]
            sum_xl = sum_xl + weighted * x(j)
        kept = e.kept(codes)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = e.div(sum_w * sum_xl - sum_x * sum_l, determinant)
        new_low = e.div(sum_l2 * sum_x - sum_l * sum_xl, determinant)
        positive = new_low.compare("ogt", 0.0)
        new_low = e.either(positive, 0.0, new_low)
        new_scale = e.select(positive, e.div(sum_xl, sum_l2), new_scale)
        new_error = error_of(kept, new_scale, new_low)
        better = _both(e, determinant.compare("ogt", 0.0), new_error.compare("olt", error))
        loop.next = [
            e.select(better, new, old)
            for new, old in (
                (new_error, error),
                (new_scale, scale),
                (new_low, low),
                (factor, won),
                (low, won_low),
            )
        ]
    _, scale, low, won, won_low = loop.results
    low = e.select(flat, first_low, low)
    return Range(
        e.either(flat, 0.0, scale),
        e.negative(low),
        e.either(flat, 0.0, won),
        e.either(flat, 0.0, won_low),
    )


def steps(start: float, by: float, count: int, top: int) -> list[np.float32]:
    """`start + by * i + top` for i up to and with `count`, each operation rounded."""
    return [
        single(single(single(start) + single(single(by) * single(i))) + single(top))
        for i in range(count + 1)
    ]


def symmetric(
    e: Encoder, n: int, top: int, x: Reader, w: Reader, *, name: str = "search"
) -> Symmetric:
    """The scale of `n` values for codes from `-top` to `top - 1`.

    *Source*: `make_qx_quants` with its weights or x^2.
    """
    extreme, size = largest(e, [x(j) for j in range(n)])
    zero = size.compare("olt", TINY)

    def sums(factor: Value) -> tuple[Value, Value]:
        sum_lx = sum_l2 = e.const(F32, 0.0)
        for j in range(n):
            code = e.to_float(e.level(factor * x(j), -top, top - 1))
            weight = w(j)
            sum_lx = sum_lx + weight * x(j) * code
            sum_l2 = sum_l2 + weight * code * code
        return sum_lx, sum_l2

    first = e.div(float(-top), extreme)
    sum_lx, sum_l2 = sums(first)
    scale = e.either(sum_l2.compare("oeq", 0.0), 0.0, e.div(sum_lx, sum_l2))
    offsets = [i for i in range(-9, 10) if i]
    factors = [-single(single(top) + single(single(0.1) * single(i))) for i in offsets]
    table = e.table(f"{name}_{top}", b"".join(struct.pack("<f", factor) for factor in factors))
    with e.loop(0, len(factors), carry=[scale, scale * sum_lx, first]) as loop:
        scale, best, won = loop.carried
        factor = e.div(e.load_splat("float", 8, table, loop.index * 4), extreme)
        sum_lx, sum_l2 = sums(factor)
        better = _both(
            e,
            sum_l2.compare("ogt", 0.0),
            (sum_lx * sum_lx).compare("ogt", best * sum_l2),
        )
        new_scale = e.div(sum_lx, sum_l2)
        loop.next = [
            e.select(better, new_scale, scale),
            e.select(better, new_scale * sum_lx, best),
            e.select(better, factor, won),
        ]
    scale, _, won = loop.results
    return Symmetric(
        e.either(zero, 0.0, scale),
        e.either(zero, 0.0, won),
        e.select(zero, e.const(I32, 0), e.const(I32, top)),
    )


def descend(e: Encoder, n: int, top: int, x: Reader) -> tuple[Value, list[Value]]:
    """The scale of `n` values for codes from `-top` to `top - 1`, one code at a time.

    Codes start at the nearest and each moves while that helps, five times round. Returns the
    scale and the codes plus `top`.

    *Source*: `make_q3_quants`.
    """
    extreme, size = largest(e, [x(j) for j in range(n)])
    zero = size.compare("olt", TINY)
    factor = e.div(float(-top), extreme)
    codes = [e.level(factor * x(j), -top, top - 1) for j in range(n)]
    sum_lx = sum_l2 = e.const(F32, 0.0)
    for j in range(n):
        weight, code = x(j) * x(j), e.to_float(codes[j])
        sum_lx = sum_lx + weight * x(j) * code
        sum_l2 = sum_l2 + weight * code * code
    with e.loop(0, 5, carry=[sum_lx, sum_l2, *codes]) as loop:
        sum_lx, sum_l2, *codes = loop.carried
        for j in range(n):
            v = x(j)
            weight, code = v * v, e.to_float(codes[j])
            without_lx = sum_lx - weight * v * code
            without_l2 = sum_l2 - weight * code * code
            moved = e.level(e.div(v * without_l2, without_lx), -top, top - 1)
            new = e.to_float(moved)
            new_lx = without_lx + weight * v * new
            new_l2 = without_l2 + weight * new * new
            gains = (new_lx * new_lx * sum_l2).compare("ogt", sum_lx * sum_lx * new_l2)
            better = _both(e, without_lx.compare("ogt", 0.0), moved.compare("ne", codes[j]))
            better = _both(e, _both(e, better, new_l2.compare("ogt", 0.0)), gains)
            codes[j] = e.select(better, moved, codes[j])
            sum_lx = e.select(better, new_lx, sum_lx)
            sum_l2 = e.select(better, new_l2, sum_l2)
        loop.next = [sum_lx, sum_l2, *codes]
    sum_lx, sum_l2, *codes = loop.results
    scale = e.either(sum_l2.compare("ogt", 0.0), e.div(sum_lx, sum_l2), 0.0)
    none = e.const(I32, 0)
    return e.either(zero, 0.0, scale), [e.select(zero, none, code + top) for code in codes]


def positive(
    e: Encoder, top: int, x: Sequence[Value], w: Sequence[Value]
) -> tuple[Value, list[Value]]:
    """The scale of scalars that are not negative, for codes from 0 to `top`, and the codes.

    Tries nine scales, then moves one code at a time while that helps, five times round. Eight
    of the tries run side by side, each with its own sums in order.

    *Source*: `make_qp_quants`.
    """
    greatest = e.const("float", 0.0)
    for v in x:
        greatest = e.select(greatest.compare("ogt", v), greatest, v)
    first = e.div(float(top), greatest)
    scale = e.div(1.0, first)
    error = e.const("float", 0.0)
    for v, weight in zip(x, w, strict=True):
        miss = v - scale * e.to_float(e.nearest(first * v) & 0xFF)
        error = error + weight * miss * miss
    tries = [single(single(0.1) * single(i)) + single(top) for i in range(-4, 5) if i]
    table = e.table(f"positive_{top}", b"".join(struct.pack("<f", t) for t in tries))
    factors = e.div(e.load(F32, table, 0), e.splat(greatest, LANES))
    scales, errors = e.div(1.0, factors), e.const(F32, 0.0)
    for v, weight in zip(x, w, strict=True):
        wide = e.splat(v, LANES)
        codes = e.minimum(e.nearest(factors * wide), top)
        miss = wide - scales * e.to_float(codes)
        errors = errors + e.splat(weight, LANES) * miss * miss
    factor = first
    for other, found in zip(e.scalars([factors]), e.scalars([errors]), strict=True):
        better = found.compare("olt", error)
        factor, error = e.select(better, other, factor), e.select(better, found, error)
    return _moved(e, top, x, w, factor, greatest.compare("olt", TINY))


def _moved(
    e: Encoder, top: int, x: Sequence[Value], w: Sequence[Value], factor: Value, zero: Value
) -> tuple[Value, list[Value]]:
    """The second half of `positive`: codes move one at a time."""
    sum_lx = sum_l2 = e.const("float", 0.0)
    start = []
    for v, weight in zip(x, w, strict=True):
        code = e.minimum(e.nearest(factor * v), top)
        level = e.to_float(code)
        sum_lx = sum_lx + weight * v * level
        sum_l2 = sum_l2 + weight * level * level
        start.append(code & 0xFF)
    with e.loop(0, 5, carry=[sum_lx, sum_l2, *start]) as loop:
        sum_lx, sum_l2, *codes = loop.carried
        for i, (v, weight) in enumerate(zip(x, w, strict=True)):
            level = e.to_float(codes[i])
            without_lx = sum_lx - weight * v * level
            without_l2 = sum_l2 - weight * level * level
            moved = e.minimum(e.nearest(e.div(v * without_l2, without_lx)), top)
            new = e.to_float(moved)
            new_lx = without_lx + weight * v * new
            new_l2 = without_l2 + weight * new * new
            gains = (new_lx * new_lx * sum_l2).compare("ogt", sum_lx * sum_lx * new_l2)
            usable = _both(e, without_lx.compare("ogt", 0.0), without_l2.compare("ogt", 0.0))
            better = _both(e, _both(e, usable, moved.compare("ne", codes[i])), gains)
            codes[i] = e.select(better, moved & 0xFF, codes[i])
            sum_lx = e.select(better, new_lx, sum_lx)
            sum_l2 = e.select(better, new_l2, sum_l2)
        loop.next = [sum_lx, sum_l2, *codes]
    sum_lx, sum_l2, *codes = loop.results
    scale = e.either(sum_l2.compare("ogt", 0.0), e.div(sum_lx, sum_l2), 0.0)
    none = e.const("i32", 0)
    return e.either(zero, 0.0, scale), [e.select(zero, none, code) for code in codes]


def importance_weights(e: Encoder, group: int, x: Sequence[Reader], square: Value) -> list[Reader]:
    """Weights of the tile's groups: the importance times the root of `square` plus x^2."""
    return [
        e.kept([importance(j) * e.sqrt(square + v(j) * v(j)) for j in range(group)])
        for importance, v in zip(e.across(e.importance, group), x, strict=True)
    ]


def summed(e: Encoder, n: int, w: Reader) -> Value:
    """The sum of a group's weights, in order."""
    total = e.const(F32, 0.0)
    for j in range(n):
        total = total + w(j)
    return total


def tile_square(e: Encoder) -> Value:
    """The sum of squares of the tile, in order."""
    with e.loop(0, TILE, carry=[e.const("float", 0.0)]) as loop:
        v = e.load("float", e.x, loop.index * 4)
        loop.next = [loop.carried[0] + v * v]
    return loop.results[0]


def _both(e: Encoder, a: Value, b: Value) -> Value:
    return e.binary("and", a, b)
