"""Q4_0: 32 four-bit codes around 8, one f16 scale. Source: ggml `block_q4_0`.

Bytes: d f16 | 16 bytes of nibbles, low nibbles for values 0..15, high ones for 16..31.
"""

from kinetic.ir.quant.base import BlockFormat, Plane

Q4_0 = BlockFormat(
    name="Q4_0",
    ggml_id=2,
    values=32,
    nbytes=18,
    planes=(Plane(4, 0, lambda run: (2, 4 * run)),),
    d=0,
    zero=8,
    dequantize=lambda d, dmin, s, m, q: q * d,
)
