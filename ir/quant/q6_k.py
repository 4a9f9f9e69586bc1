"""Q6_K: 256 values, 16 groups of 16 with signed 8-bit scales, 6-bit codes around 32.

Bytes: 128 of low nibbles | 64 of high bit pairs | 16 scales | d f16. Halves of 128
values; in a half, value 32 a + i has its nibble in byte `32 (a % 2) + i` at shift
`4 (a // 2)` and its pair in byte `i` at shift `2 a`. Source: ggml `block_q6_K`.
"""

from kinetic.ir.quant.base import BlockFormat, Plane


def _low(run: int) -> tuple[int, int]:
    half, a, part = run // 8, run // 2 % 4, run % 2
    return 64 * half + 32 * (a % 2) + 16 * part, 4 * (a // 2)


def _high(run: int) -> tuple[int, int]:
    half, a, part = run // 8, run // 2 % 4, run % 2
    return 128 + 32 * half + 16 * part, 2 * a


Q6_K = BlockFormat(
    name="Q6_K",
    ggml_id=14,
    values=256,
    nbytes=210,
    planes=(Plane(4, 0, _low), Plane(2, 4, _high)),
    d=208,
    zero=32,
    group=16,
    scale=lambda r, j: r.s8(192 + j),
    scale_signed=True,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)
