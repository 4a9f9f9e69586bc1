"""Q5_1: 32 five-bit codes with an f16 scale and an f16 minimum. Source: ggml `block_q5_1`.

Bytes: d f16 | m f16 | 4 bytes of high bits, bit `i` for value `i` | 16 bytes of nibbles,
low nibbles for values 0..15, high ones for 16..31.
"""

from kinetic.ir.quant.base import BitMask, BlockFormat, Plane

Q5_1 = BlockFormat(
    name="Q5_1",
    ggml_id=7,
    values=32,
    nbytes=24,
    planes=(Plane(4, 0, lambda run: (8, 4 * run)), BitMask(4, 4)),
    d=0,
    dmin=2,
    min_sign=1,
    dequantize=lambda d, dmin, s, m, q: q * d + dmin,
)
