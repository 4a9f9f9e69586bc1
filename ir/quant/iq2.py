"""IQ2_S, IQ2_XS and IQ2_XXS: eight values at a time from a grid of {8, 25, 43}, with signs.

A code is the place of its magnitude and, above it, its sign. ggml's scales are
`(0.5 + s) / 4`; `1 + 2 s` is whole, so the rest goes into `d_factor`, exactly.

256 values a block. IQ2_S bytes, groups of 16: d f16 | 32 of low index bits | 32 of signs | 8
of two index bits each | 8 of scale nibbles. IQ2_XS, groups of 16: d f16 | 32 words of a 9-bit
index and seven signs (the eighth makes their number even) | 8 of scale nibbles. IQ2_XXS,
groups of 32: d f16 | 8 times four index bytes and a word of four 7-bit signs under a 4-bit
scale. An `isum` stays below `43 * 127 * 31 * 256 < 2^26`.
Source: ggml `block_iq2_s`, `block_iq2_xs`, `block_iq2_xxs`.
"""

from kinetic.ir.quant import grids
from kinetic.ir.quant.base import BlockFormat, Grid, Mask8
from kinetic.ir.quant.iq3 import even, even_signs, odd_nibble, with_signs

CODEBOOK = with_signs((8, 25, 43, 0))
"""The fourth magnitude is never used."""


IQ2_S = BlockFormat(
    name="IQ2_S",
    ggml_id=22,
    values=256,
    nbytes=82,
    planes=(
        Grid(
            bits=2,
            width=8,
            table=grids.IQ2_S,
            index=lambda r, j: r.u8(2 + j) | (((r.u8(66 + j // 4) >> (2 * (j % 4))) & 3) << 8),
        ),
        Mask8(2, lambda r, j: r.u8(34 + j)),
    ),
    d=0,
    d_factor=0.125,
    group=16,
    scale=lambda r, j: odd_nibble(r, 74, j),
    codebook=CODEBOOK,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)

IQ2_XS = BlockFormat(
    name="IQ2_XS",
    ggml_id=17,
    values=256,
    nbytes=74,
    planes=(
        Grid(
            bits=2,
            width=8,
            table=grids.IQ2_XS,
            index=lambda r, j: r.u8(2 + 2 * j) | ((r.u8(3 + 2 * j) & 1) << 8),
        ),
        Mask8(2, lambda r, j: even(r.u8(3 + 2 * j) >> 1)),
    ),
    d=0,
    d_factor=0.125,
    group=16,
    scale=lambda r, j: odd_nibble(r, 66, j),
    codebook=CODEBOOK,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)

IQ2_XXS = BlockFormat(
    name="IQ2_XXS",
    ggml_id=16,
    values=256,
    nbytes=66,
    planes=(
        Grid(
            bits=2,
            width=8,
            table=grids.IQ2_XXS,
            index=lambda r, j: r.u8(2 + 8 * (j // 4) + j % 4),
        ),
        Mask8(2, lambda r, j: even_signs(r, 6 + 8 * (j // 4), j % 4)),
    ),
    d=0,
    d_factor=0.125,
    group=32,
    scale=lambda r, j: (r.u8(9 + 8 * j) >> 4) * 2 + 1,
    codebook=CODEBOOK,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)
