"""Q8_0: 32 signed bytes with one f16 scale. Source: ggml `block_q8_0`."""

from kinetic.ir.quant.base import BlockFormat, Plane

Q8_0 = BlockFormat(
    name="Q8_0",
    ggml_id=8,
    values=32,
    nbytes=34,
    planes=(Plane(8, 0, lambda run: (2 + 16 * run, 0)),),
    d=0,
    flip=0x80,
    zero=128,
    dequantize=lambda d, dmin, s, m, q: q * d,
)
