"""Q1_0 and Q2_0: one or two bits a value, packed in order, with one f16 scale.

Bytes: d f16 | 16 of codes. Q1_0 has 128 values of -d or +d; Q2_0 has 64 codes around 1.
Source: ggml `block_q1_0`, `block_q2_0`.
"""

from kinetic.ir.quant.base import BitMask, BlockFormat

Q1_0 = BlockFormat(
    name="Q1_0",
    ggml_id=41,
    values=128,
    nbytes=18,
    planes=(BitMask(0, 2),),
    d=0,
    codebook=(-1, 1),
    dequantize=lambda d, dmin, s, m, q: q * d,
)

Q2_0 = BlockFormat(
    name="Q2_0",
    ggml_id=42,
    values=64,
    nbytes=18,
    planes=(BitMask(0, 2, bits=2),),
    d=0,
    zero=1,
    dequantize=lambda d, dmin, s, m, q: q * d,
)
