"""Q5_0: 32 five-bit codes around 16, one f16 scale. Source: ggml `block_q5_0`.

Bytes: d f16 | 4 bytes of high bits, bit `i` for value `i` | 16 bytes of nibbles, low
nibbles for values 0..15, high ones for 16..31.
"""

from kinetic.ir.quant.base import BitMask, BlockFormat, Plane

Q5_0 = BlockFormat(
    name="Q5_0",
    ggml_id=6,
    values=32,
    nbytes=22,
    planes=(Plane(4, 0, lambda run: (6, 4 * run)), BitMask(4, 2)),
    d=0,
    zero=16,
    dequantize=lambda d, dmin, s, m, q: q * d,
)
