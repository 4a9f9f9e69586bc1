"""Q2_K to Q6_K: blocks of 256 in groups, whose scales are integers of one float scale.

*Source*: ggml's `quantize_row_q*_K_ref`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinetic.codegen.kernels.cpu.simd import I32, LANES
from kinetic.codegen.targets.llvm_ir import Value
from kinetic.quantize.encoders.lanes import TILE, TINY, Encoder, Reader, largest, transposed
from kinetic.quantize.encoders.search import (
    Range,
    Symmetric,
    descend,
    importance_weights,
    positive,
    steps,
    summed,
    symmetric,
    tile_square,
    with_minimum,
)

GROUP16, GROUP32 = 16, 32
CHUNKS = TILE // LANES


def q4_k(e: Encoder) -> None:
    """Eight groups of 32 with a 6-bit scale and minimum each, codes of 4 bits."""
    _q45(e, 4, steps(-1.0, 0.1, 20, 15))


def q5_k(e: Encoder) -> None:
    """As Q4_K, codes of 5 bits."""
    _q45(e, 5, steps(-0.5, 0.1, 15, 31))


def _q45(e: Encoder, bits: int, factors: Sequence[np.float32]) -> None:
    top = (1 << bits) - 1
    if e.weighted:
        _q45_weighted(e, bits)
        return
    with e.tiles():
        (x,) = e.across(e.x, GROUP32)
        found = with_minimum(
            e,
            GROUP32,
            top,
            x,
            _rms_plus_size(e, x),
            factors,
            absolute=False,
        )
        scales, minima = e.scalars([found.scale]), e.scalars([found.minimum])
        top_scale, top_minimum = _greatest(e, scales), _greatest(e, minima)
        scale_codes = _six_bits(e, found.scale, top_scale)
        minimum_codes = _six_bits(e, found.minimum, top_minimum)
        pack_six_bits(e, scale_codes, minimum_codes, 4)
        d = _put_scale(e, e.div(top_scale, 63.0), 0)
        dmin = _put_scale(e, e.div(top_minimum, 63.0), 2)
        codes = ranged_codes(e, [found], [scale_codes], [minimum_codes], d, dmin, GROUP32, top)
        put_q4(e, codes, 16) if bits == 4 else put_q5(e, codes, 16)


WEIGHTED_STEPS = (-0.9, 0.05, 36)
"""The tries of searches that importance weighs."""


def _q45_weighted(e: Encoder, bits: int) -> None:
    """Q4_K and Q5_K with importance, which also weighs the choice of scales and minima.

    *Source*: `quantize_row_q4_K_impl`.
    """
    top = (1 << bits) - 1
    with e.tiles():
        x = e.across(e.x, GROUP32)
        square = e.splat(tile_square(e) * (2.0 / TILE), LANES)
        (w,) = importance_weights(e, GROUP32, x, square)
        factors = steps(*WEIGHTED_STEPS, top)
        found = with_minimum(e, GROUP32, top, x[0], w, factors, absolute=False)
        weights = e.scalars([summed(e, GROUP32, w)])
        scale, scale_codes = positive(e, 63, e.scalars([found.scale]), weights)
        minimum, minimum_codes = positive(e, 63, e.scalars([found.minimum]), weights)
        (scales,), (minima,) = e.vectors(scale_codes), e.vectors(minimum_codes)
        pack_six_bits(e, scales, minima, 4)
        d, dmin = _put_scale(e, scale, 0), _put_scale(e, minimum, 2)
        codes = ranged_codes(e, [found], [scales], [minima], d, dmin, GROUP32, top)
        put_q4(e, codes, 16) if bits == 4 else put_q5(e, codes, 16)


def _rms_plus_size(e: Encoder, x: Reader) -> Reader:
    """Weights of a group: its root mean square plus each magnitude."""
    total = e.const(x(0).type, 0.0)
    for j in range(GROUP32):
        total = total + x(j) * x(j)
    rms = e.sqrt(e.div(total, float(GROUP32)))
    return e.kept([rms + e.abs(x(j)) for j in range(GROUP32)])


def _greatest(e: Encoder, values: Sequence[Value]) -> Value:
    """The greatest value above zero, or zero."""
    best = e.const("float", 0.0)
    for value in values:
        best = e.select(value.compare("ogt", best), value, best)
    return best


def _six_bits(e: Encoder, values: Value, greatest: Value) -> Value:
    """Values as shares of the greatest, in 63rds."""
    factor = e.either(greatest.compare("ogt", 0.0), e.div(63.0, greatest), 0.0)
    return e.minimum(e.nearest(e.splat(factor, LANES) * values) & 0xFF, 63)


def pack_six_bits(e: Encoder, scales: Value, minima: Value, at: int) -> None:
    """Eight 6-bit scales and minima in twelve bytes."""
    s, m = e.scalars([scales]), e.scalars([minima])
    for j in range(4):
        e.put_byte(s[j] | ((s[j + 4] >> 4) << 6), at + j)
        e.put_byte(m[j] | ((m[j + 4] >> 4) << 6), at + j + 4)
        e.put_byte((s[j + 4] & 0xF) | ((m[j + 4] & 0xF) << 4), at + j + 8)


def _put_scale(e: Encoder, value: Value, at: int) -> Value:
    """Store a float as f16; what the f16 means."""
    bits = e.f16_bits(value)
    e.put_half(bits, at)
    return e.from_f16_bits(bits)


def ranged_codes(
    e: Encoder,
    found: Sequence[Range],
    scales: Sequence[Value],
    minima: Sequence[Value],
    d: Value,
    dmin: Value,
    group: int,
    top: int,
) -> list[Value]:
    """Codes of the tile under its final scales, eight values each.

    A group whose scale came out as zero keeps the codes of its search.
    """
    steps_of = e.scalars([e.splat(d, LANES) * e.to_float(s) for s in scales])
    lows = e.scalars([e.splat(dmin, LANES) * e.to_float(m) for m in minima])
    factors = e.scalars([r.factor for r in found])
    first_lows = e.scalars([r.low for r in found])
    codes = []
    for g in range(TILE // group):
        step, low = e.splat(steps_of[g], LANES), e.splat(lows[g], LANES)
        factor, first_low = e.splat(factors[g], LANES), e.splat(first_lows[g], LANES)
        none = step.compare("oeq", 0.0)
        for j in range(0, group, LANES):
            x = e.along(group * g + j)
            final = e.level(e.div(x + low, step), 0, top)
            codes.append(e.select(none, e.level(factor * (x - first_low), 0, top), final))
    return codes


def put_q4(e: Encoder, codes: Sequence[Value], at: int) -> None:
    """Nibbles: a group in the low ones, the next group in the high ones."""
    for pair in range(4):
        for j in range(4):
            low, high = codes[8 * pair + j], codes[8 * pair + 4 + j]
            e.put_bytes(low | (high << 4), at + 32 * pair + 8 * j)


def put_q5(e: Encoder, codes: Sequence[Value], at: int) -> None:
    """32 bytes of fifth bits, one bit a group, then the nibbles of Q4_K."""
    for j in range(4):
        bits = e.const(I32, 0)
        for g in range(8):
            bits = bits | ((codes[4 * g + j] >> 4) << g)
        e.put_bytes(bits, at + 8 * j)
    put_q4(e, [code & 0xF for code in codes], at + 32)


def q2_k(e: Encoder) -> None:
    """Sixteen groups of 16 with a 4-bit scale and minimum each, codes of 2 bits."""
    if e.weighted:
        _q2_weighted(e)
        return
    factors = steps(-0.5, 0.1, 15, 3)
    with e.tiles():
        found = []
        for x in e.across(e.x, GROUP16):
            w = e.kept([e.abs(x(j)) for j in range(GROUP16)])
            found.append(with_minimum(e, GROUP16, 3, x, w, factors, absolute=True))
        top_scale = _greatest(e, e.scalars([r.scale for r in found]))
        top_minimum = _greatest(e, e.scalars([r.minimum for r in found]))
        scales = [_four_bits(e, r.scale, top_scale) & 0xFF for r in found]
        minima = [_four_bits(e, r.minimum, top_minimum) & 0xF for r in found]
        d = _put_scale(e, e.div(top_scale, 15.0), 80)
        dmin = _put_scale(e, e.div(top_minimum, 15.0), 82)
        finish_q2(e, found, scales, minima, d, dmin)


def _q2_weighted(e: Encoder) -> None:
    """Q2_K with importance.

    *Source*: `quantize_row_q2_K_impl`.
    """
    factors = steps(*WEIGHTED_STEPS, 3)
    with e.tiles():
        x = e.across(e.x, GROUP16)
        square = e.splat(tile_square(e) * (1.0 / TILE), LANES)
        w = importance_weights(e, GROUP16, x, square)
        found = [
            with_minimum(e, GROUP16, 3, v, weight, factors, absolute=False)
            for v, weight in zip(x, w, strict=True)
        ]
        weights = e.scalars([summed(e, GROUP16, weight) for weight in w])
        scale, scales = positive(e, 15, e.scalars([r.scale for r in found]), weights)
        minimum, minima = positive(e, 15, e.scalars([r.minimum for r in found]), weights)
        d, dmin = _put_scale(e, scale, 80), _put_scale(e, minimum, 82)
        finish_q2(e, found, e.vectors(scales), e.vectors(minima), d, dmin)


def finish_q2(
    e: Encoder,
    found: Sequence[Range],
    scales: Sequence[Value],
    minima: Sequence[Value],
    d: Value,
    dmin: Value,
) -> None:
    """The bytes of scales and codes of Q2_K."""
    for half in range(2):
        e.put_bytes(scales[half] | (minima[half] << 4), LANES * half)
    codes = ranged_codes(e, found, [s & 0xF for s in scales], minima, d, dmin, GROUP16, 3)
    put_pairs(e, codes, 16)


def _four_bits(e: Encoder, values: Value, greatest: Value) -> Value:
    positive = greatest.compare("ogt", 0.0)
    factor = e.either(positive, e.div(15.0, greatest), 0.0)
    return e.nearest(e.splat(factor, LANES) * values)


def put_pairs(e: Encoder, codes: Sequence[Value], at: int) -> None:
    """Two bits a code: four stretches of 32 values share 32 bytes."""
    for half in range(2):
        for j in range(4):
            c = [codes[16 * half + 4 * part + j] for part in range(4)]
            byte = c[0] | (c[1] << 2) | (c[2] << 4) | (c[3] << 6)
            e.put_bytes(byte, at + 32 * half + 8 * j)


def q3_k(e: Encoder) -> None:
    """Sixteen groups of 16 with a signed 6-bit scale each, codes of 3 bits."""
    if e.weighted:
        _q3_weighted(e)
        return
    with e.tiles():
        scales, codes = [], []
        for x in e.across(e.x, GROUP16):
            scale, group_codes = descend(e, GROUP16, 4, x)
            scales.append(scale)
            codes.append(group_codes)
        extreme, _ = largest(e, e.scalars(scales))
        some = extreme.compare("one", 0.0)
        factor = e.div(-32.0, extreme)
        wide = e.splat(factor, LANES)
        signed = [_signed_byte(e, e.nearest(wide * scale)) for scale in scales]
        six = [e.clamp(s, -32, 31) + 32 for s in signed]
        six = [e.select(e.splat(some, LANES), s, e.const(I32, 0)) for s in six]
        d = _put_scale(e, e.either(some, e.div(1.0, factor), 0.0), 108)
        finish_q3(e, six, d, along_groups(e, codes))


def _q3_weighted(e: Encoder) -> None:
    """Q3_K with importance; the scales are searched for like values.

    *Source*: `quantize_row_q3_K_impl`.
    """
    with e.tiles():
        x = e.across(e.x, GROUP16)
        square = e.splat(tile_square(e) * (2.0 / TILE), LANES)
        w = importance_weights(e, GROUP16, x, square)
        found = [symmetric(e, GROUP16, 4, v, weight) for v, weight in zip(x, w, strict=True)]
        scales = e.scalars([f.scale for f in found])
        weights = e.scalars([summed(e, GROUP16, weight) for weight in w])
        wide = e.kept([e.splat(scale, LANES) for scale in scales])
        block = symmetric(e, 16, 32, wide, e.kept([e.splat(v, LANES) for v in weights]))
        six = [e.level(block.factor * f.scale, -32, 31) + block.base for f in found]
        d = _put_scale(e, block.scale.at(0), 108)
        finish_q3(e, six, d, searched_codes(e, found, GROUP16, 4))


def _signed_byte(e: Encoder, value: Value) -> Value:
    """The low byte, as a signed number."""
    return (value << 24).ashr(24)


def along_groups(e: Encoder, codes: Sequence[Sequence[Value]]) -> list[Value]:
    """Codes across sixteen groups as codes along the tile, eight values each."""
    chunks: list[Value] = [codes[0][0]] * CHUNKS
    for half, columns in enumerate(codes):
        for part in range(2):
            for g, row in enumerate(transposed(e, columns[8 * part : 8 * part + 8])):
                chunks[2 * (8 * half + g) + part] = row
    return chunks


def finish_q3(e: Encoder, six: Sequence[Value], d: Value, searched: Sequence[Value]) -> None:
    """The bytes of scales and codes of Q3_K; `six` are the scales plus 32."""
    s = e.scalars(six)
    for j in range(8):
        e.put_byte((s[j] & 0xF) | ((s[j + 8] & 0xF) << 4), 96 + j)
    for j in range(4):
        high = [(s[j + 4 * k] >> 4) << 2 * k for k in range(4)]
        e.put_byte(high[0] | high[1] | high[2] | high[3], 104 + j)
    step = e.scalars([e.splat(d, LANES) * e.to_float(v - 32) for v in six])
    codes = final_codes(e, step, searched, 4)
    for j in range(4):
        bits = e.const(I32, 0)
        for part in range(8):
            bits = bits | ((codes[4 * part + j] >> 2) << part)
        e.put_bytes(bits, 8 * j)
    put_pairs(e, [code & 3 for code in codes], 32)


def final_codes(
    e: Encoder, step: Sequence[Value], searched: Sequence[Value], top: int
) -> list[Value]:
    """Codes plus `top` under the final scales; a zero scale keeps the codes of the search."""
    codes = []
    for g in range(TILE // GROUP16):
        wide = e.splat(step[g], LANES)
        none = wide.compare("oeq", 0.0)
        for part in range(2):
            x = e.along(GROUP16 * g + LANES * part)
            code = e.level(e.div(x, wide), -top, top - 1) + top
            codes.append(e.select(none, searched[2 * g + part], code))
    return codes


def q6_k(e: Encoder) -> None:
    """Sixteen groups of 16 with a signed 8-bit scale each, codes of 6 bits."""
    with e.tiles():
        found = []
        for half, x in enumerate(e.across(e.x, GROUP16)):
            found.append(symmetric(e, GROUP16, 32, x, _squares_or_importance(e, x, half)))
        extreme, size = largest(e, e.scalars([f.scale for f in found]))
        empty = size.compare("olt", TINY)
        factor = e.div(-128.0, extreme)
        scales = [e.minimum(e.nearest(e.splat(factor, LANES) * f.scale), 127) for f in found]
        nothing = e.splat(empty, LANES)
        scales = [e.select(nothing, e.const(I32, 0), s) for s in scales]
        d = _put_scale(e, e.either(empty, 0.0, e.div(1.0, factor)), 208)
        for half in range(2):
            e.put_bytes(scales[half], 192 + LANES * half)
        stored = [_signed_byte(e, s) for s in scales]
        step = e.scalars([e.splat(d, LANES) * e.to_float(s) for s in stored])
        codes = final_codes(e, step, searched_codes(e, found, GROUP16, 32), 32)
        put_q6(e, [e.select(nothing, e.const(I32, 0), c) for c in codes])


def _squares_or_importance(e: Encoder, x: Reader, half: int) -> Reader:
    """Weights of Q6_K: the importance alone where there is one, else x^2."""
    if e.weighted:
        return e.across(e.importance, GROUP16)[half]
    return e.kept([x(j) * x(j) for j in range(GROUP16)])


def searched_codes(e: Encoder, found: Sequence[Symmetric], group: int, top: int) -> list[Value]:
    """Codes that the searches ended with, along the tile."""
    factors = e.scalars([f.factor for f in found])
    bases = e.scalars([f.base for f in found])
    codes = []
    for g in range(TILE // group):
        factor, base = e.splat(factors[g], LANES), e.splat(bases[g], LANES)
        for j in range(0, group, LANES):
            x = e.along(group * g + j)
            codes.append(e.level(factor * x, -top, top - 1) + base)
    return codes


def put_q6(e: Encoder, codes: Sequence[Value]) -> None:
    """128 bytes of low nibbles, 64 of high pairs."""
    for half in range(2):
        for j in range(4):
            c = [codes[16 * half + 4 * part + j] for part in range(4)]
            low = [code & 0xF for code in c]
            high = [code >> 4 for code in c]
            e.put_bytes(low[0] | (low[2] << 4), 64 * half + 8 * j)
            e.put_bytes(low[1] | (low[3] << 4), 64 * half + 32 + 8 * j)
            pairs = high[0] | (high[1] << 2) | (high[2] << 4) | (high[3] << 6)
            e.put_bytes(pairs, 128 + 32 * half + 8 * j)
