"""Q2_K: 256 values, 16 groups of 16 with 4-bit scales and minima, 2-bit codes.

Bytes: 16 of scales (low nibbles) and minima (high nibbles) | 64 of bit pairs | d f16 |
dmin f16. Source: ggml `block_q2_K`.
"""

from kinetic.ir.quant.base import BlockFormat, Plane


def pairs(base: int) -> Plane:
    """The 2-bit plane that Q2_K, Q3_K and TQ2_0 share: halves of 128 values in 32 bytes.

    Value `32 a + i` of a half has its pair in byte `i` at shift `2 a`.
    """
    return Plane(2, 0, lambda run: (base + 32 * (run // 8) + 16 * (run % 2), 2 * (run // 2 % 4)))


Q2_K = BlockFormat(
    name="Q2_K",
    ggml_id=10,
    values=256,
    nbytes=84,
    planes=(pairs(16),),
    d=80,
    dmin=82,
    min_sign=-1,
    group=16,
    scale=lambda r, j: r.u8(j) & 15,
    minimum=lambda r, j: r.u8(j) >> 4,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q - dmin * m,
)
