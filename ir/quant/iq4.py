"""IQ4_NL and IQ4_XS: 4-bit codes into one codebook of sixteen unevenly spaced integers.

IQ4_NL bytes, 32 values: d f16 | 16 of nibbles, low nibbles for values 0..15, high ones
for 16..31. IQ4_XS bytes, 256 values in 8 groups of 32 with 6-bit scales around 32: d f16 |
2 of top scale bits, two a group | 4 of low scale nibbles | 128 of nibbles, each group like
an IQ4_NL block. Source: ggml `block_iq4_nl`, `block_iq4_xs`, `kvalues_iq4nl`.
"""

from typing import Any

from kinetic.ir.quant.base import BlockFormat, Plane, Reader

CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

IQ4_NL = BlockFormat(
    name="IQ4_NL",
    ggml_id=20,
    values=32,
    nbytes=18,
    planes=(Plane(4, 0, lambda run: (2, 4 * run)),),
    d=0,
    codebook=CODEBOOK,
    dequantize=lambda d, dmin, s, m, q: d * q,
)


def _scale(r: Reader, j: int) -> Any:
    low = (r.u8(4 + j // 2) >> (4 * (j % 2))) & 15
    high = (r.u8(2 + j // 4) >> (2 * (j % 4))) & 3
    return (low | (high << 4)) - 32


IQ4_XS = BlockFormat(
    name="IQ4_XS",
    ggml_id=23,
    values=256,
    nbytes=136,
    planes=(Plane(4, 0, lambda run: (8 + 16 * (run // 2), 4 * (run % 2))),),
    d=0,
    group=32,
    scale=_scale,
    scale_signed=True,
    codebook=CODEBOOK,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)
