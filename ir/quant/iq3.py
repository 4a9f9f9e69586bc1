"""IQ3_S and IQ3_XXS: four values at a time from a grid of odd magnitudes, with signs.

A code is the place of its magnitude and, above it, its sign. Scales are `0.5 + s` halves in
ggml; `1 + 2 s` is whole, so the halves go into `d_factor`, and every product of a dequantized
weight is exact in binary32 whichever way it is bracketed.

IQ3_S bytes, 256 values in groups of 32: d f16 | 64 of low index bits | 8 of ninth bits |
32 of signs | 4 of scale nibbles. IQ3_XXS: d f16 | 64 of indices | 8 words of four 7-bit signs
(the eighth makes their number even) under a 4-bit scale. An `isum` stays below
`62 * 127 * 31 * 256 < 2^26`. Source: ggml `block_iq3_s`, `block_iq3_xxs`.
"""

from typing import Any

from kinetic.ir.quant import grids
from kinetic.ir.quant.base import BlockFormat, Grid, Mask8, Reader


def with_signs(magnitudes: tuple[int, ...]) -> tuple[int, ...]:
    """A codebook whose upper half is the lower one's negatives."""
    return (*magnitudes, *(-value for value in magnitudes))


def even_signs(r: Reader, offset: int, which: int) -> Any:
    """Eight sign bits from the `which`-th seven of the word at `offset`."""
    byte, shift = divmod(7 * which, 8)
    seven = ((r.u8(offset + byte) >> shift) | (r.u8(offset + byte + 1) << (8 - shift))) & 127
    return even(seven)


def even(seven: Any) -> Any:
    """Seven sign bits and the eighth that makes the number of signs even."""
    odd = seven ^ (seven >> 4)
    odd = odd ^ (odd >> 2)
    return seven | (((odd ^ (odd >> 1)) & 1) << 7)


def odd_nibble(r: Reader, offset: int, j: int) -> Any:
    """`1 + 2 s` of the `j`-th nibble from `offset` on."""
    return ((r.u8(offset + j // 2) >> (4 * (j % 2))) & 15) * 2 + 1


IQ3_S = BlockFormat(
    name="IQ3_S",
    ggml_id=21,
    values=256,
    nbytes=110,
    planes=(
        Grid(
            bits=3,
            width=4,
            table=grids.IQ3_S,
            index=lambda r, j: r.u8(2 + j) | (((r.u8(66 + j // 8) >> (j % 8)) & 1) << 8),
        ),
        Mask8(3, lambda r, j: r.u8(74 + j)),
    ),
    d=0,
    group=32,
    scale=lambda r, j: odd_nibble(r, 106, j),
    codebook=with_signs((1, 3, 5, 7, 9, 11, 13, 15)),
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)

IQ3_XXS = BlockFormat(
    name="IQ3_XXS",
    ggml_id=18,
    values=256,
    nbytes=98,
    planes=(
        Grid(bits=3, width=4, table=grids.IQ3_XXS, index=lambda r, j: r.u8(2 + j)),
        Mask8(3, lambda r, j: even_signs(r, 66 + 4 * (j // 4), j % 4)),
    ),
    d=0,
    d_factor=0.25,
    group=32,
    scale=lambda r, j: (r.u8(69 + 4 * j) >> 4) * 2 + 1,
    codebook=with_signs((4, 12, 20, 28, 36, 44, 52, 62)),
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)
