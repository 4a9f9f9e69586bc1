"""Activations of a quantized product (section 3 of the arithmetic contract)."""

from __future__ import annotations

from functools import cache

from kinetic.codegen.kernels.builder import F32, I32, U32, Builder, Kernel, Value
from kinetic.codegen.kernels.gpu.block_reader import BYTES, RUN_WORDS
from kinetic.codegen.kernels.gpu.fold import fold
from kinetic.codegen.kernels.math_words import MathWords
from kinetic.ir import math

WORD = 4
"""Codes of a thread: one word."""
WORKGROUP = 64
SMALLEST = 0x0D800000
"""Bits of 2^-100: blocks below are all zeros."""
NAN = 0x7FC00000


@cache
def quantize_rows(values: int) -> Kernel:
    """The kernel for blocks of `values` values, 32 or 256.

    *Shapes*: `x` f32 [T, K]; `codes` i8 [T, K]; `scales` f32 [T, K / values]; `sums` i32
    [T, K / 16], of the codes. *Grid*: (ceil(T * K / 256), 1, 1): blocks do not cross rows.
    """
    lanes = values // WORD

    def body(k: Builder) -> None:
        x = k.buffer("x", F32)
        codes = k.buffer("codes", U32)
        scales = k.buffer("scales", F32)
        sums = k.buffer("sums", I32)
        words = k.param("words", U32)
        peaks = k.shared(U32, WORKGROUP)
        word_sums = k.shared(I32, WORKGROUP)

        thread = k.thread()
        word = k.group(0) * WORKGROUP + thread
        inside = word < words
        first = k.minimum(word, words - 1) * WORD
        mine = [x[first + i] for i in range(WORD)]

        peak = k.const(U32, 0)
        for value in mine:
            peak = k.maximum(peak, value.as_type(U32) & math.MAGNITUDE)
        peaks[thread] = peak
        k.barrier()
        lane = thread % lanes
        block_start = thread - lane
        fold(k, peaks, [block_start], lane, lanes, k.maximum)
        amax = peaks[block_start]

        finite = amax < math.INF_BITS
        d_x = amax.as_type(F32) * (1 / 127)
        d_x = k.select(amax < SMALLEST, k.const(F32, 0.0), d_x)
        d_x = k.select(finite, d_x, k.const(U32, NAN).as_type(F32))
        usable = finite & (amax >= SMALLEST)
        inverse = math.recip_mid(MathWords(k), d_x)
        packed = k.const(U32, 0)
        for i, value in enumerate(mine):
            code = k.select(usable, nearest(k, value * inverse), k.const(I32, 0))
            packed = packed | ((code.as_type(U32) & 0xFF) << (8 * i))

        word_sums[thread] = k.dot4(packed, k.const(U32, BYTES), k.const(I32, 0))
        k.barrier()
        with k.if_(inside):
            codes[word] = packed
        with k.if_(inside & lane.equals(0)):
            scales[word // lanes] = d_x
        with k.if_(inside & (thread % RUN_WORDS).equals(0)):
            total = word_sums[thread]
            for i in range(1, RUN_WORDS):
                total = total + word_sums[thread + i]
            sums[word // RUN_WORDS] = total

    return Kernel(f"quantize_rows_{values}", WORKGROUP, body)


def nearest(k: Builder, x: Value) -> Value:
    """`x` rounded to an integer and kept within -127..127."""
    rounded = math.rne_int(MathWords(k), x)
    return k.minimum(k.maximum(rounded, -127), 127)
