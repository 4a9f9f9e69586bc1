"""Q4_1: 32 four-bit codes with an f16 scale and an f16 minimum. Source: ggml `block_q4_1`.

Bytes: d f16 | m f16 | 16 bytes of nibbles, low nibbles for values 0..15, high ones for
16..31.
"""

from kinetic.ir.quant.base import BlockFormat, Plane

Q4_1 = BlockFormat(
    name="Q4_1",
    ggml_id=3,
    values=32,
    nbytes=20,
    planes=(Plane(4, 0, lambda run: (4, 4 * run)),),
    d=0,
    dmin=2,
    min_sign=1,
    dequantize=lambda d, dmin, s, m, q: q * d + dmin,
)
