"""IQ1_S and IQ1_M: eight values at a time from a grid of {-1, 0, 1}, moved by an eighth.

A weight is `d (1 + 2 s) (g + delta)` with `delta` 1/8 or -1/8: eight times that is whole, so
the codebook holds `8 g + 1` and, above it, `8 g - 1`, and `d_factor` an eighth, exactly.

256 values a block. IQ1_S bytes, groups of 32: d f16 | 32 of low index bits | 8 words of four
times three index bits, a 3-bit scale, and the sign of `delta`. IQ1_M, groups of 16, `delta`
for eight values: 32 of low index bits | 16 of nibbles: three index bits and the sign of
`delta` | 4 words of four 3-bit scales, under four bits of d, low ones first.
Source: ggml `block_iq1_s`, `block_iq1_m`.
"""

from typing import Any

from kinetic.ir.quant import grids
from kinetic.ir.quant.base import BlockFormat, Grid, Mask8, Reader

CODEBOOK = (-7, 1, 9, 0, -9, -1, 7, 0)


def _word(r: Reader, offset: int) -> Any:
    return r.u8(offset) | (r.u8(offset + 1) << 8)


IQ1_S = BlockFormat(
    name="IQ1_S",
    ggml_id=19,
    values=256,
    nbytes=50,
    planes=(
        Grid(
            bits=2,
            width=8,
            table=grids.IQ1,
            index=lambda r, j: (
                r.u8(2 + j) | (((_word(r, 34 + 2 * (j // 4)) >> (3 * (j % 4))) & 7) << 8)
            ),
        ),
        Mask8(2, lambda r, j: (r.u8(35 + 2 * (j // 4)) >> 7) * 255),
    ),
    d=0,
    d_factor=0.125,
    group=32,
    scale=lambda r, j: ((r.u8(35 + 2 * j) >> 4) & 7) * 2 + 1,
    codebook=CODEBOOK,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)


def _d_bits(r: Reader, j: int) -> Any:
    low = (r.u8(49) >> 4) | (r.u8(51) & 240)
    return low | ((r.u8(53) >> 4) << 8) | ((r.u8(55) >> 4) << 12)


IQ1_M = BlockFormat(
    name="IQ1_M",
    ggml_id=29,
    values=256,
    nbytes=56,
    planes=(
        Grid(
            bits=2,
            width=8,
            table=grids.IQ1,
            index=lambda r, j: r.u8(j) | (((r.u8(32 + j // 2) >> (4 * (j % 2))) & 7) << 8),
        ),
        Mask8(2, lambda r, j: ((r.u8(32 + j // 2) >> (4 * (j % 2) + 3)) & 1) * 255),
    ),
    d=48,
    d_bits=_d_bits,
    d_factor=0.125,
    group=16,
    scale=lambda r, j: ((_word(r, 48 + 2 * (j // 4)) >> (3 * (j % 4))) & 7) * 2 + 1,
    codebook=CODEBOOK,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)
