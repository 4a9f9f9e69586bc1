"""TQ2_0: 256 ternary values as 2-bit codes around 1, one f16 scale.

Bytes: 64 of bit pairs as in Q2_K | d f16. Source: ggml `block_tq2_0`.
"""

from kinetic.ir.quant.base import BlockFormat
from kinetic.ir.quant.q2_k import pairs

TQ2_0 = BlockFormat(
    name="TQ2_0",
    ggml_id=35,
    values=256,
    nbytes=66,
    planes=(pairs(0),),
    d=64,
    zero=1,
    dequantize=lambda d, dmin, s, m, q: q * d,
)
