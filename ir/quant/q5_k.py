"""Q5_K: Q4_K with a fifth bit: 256 values, 8 groups of 32 with 6-bit scales and minima.

Bytes: d f16 | dmin f16 | 12 bytes of packed scales and minima | 32 bytes of high bits,
bit `j` of byte `i` for value `32 j + i` | 128 bytes of nibbles as in Q4_K.
Source: ggml `block_q5_K`.
"""

from kinetic.ir.quant.base import BlockFormat, Plane
from kinetic.ir.quant.q4_k import min6, nibbles, scale6

Q5_K = BlockFormat(
    name="Q5_K",
    ggml_id=13,
    values=256,
    nbytes=176,
    planes=(nibbles(48), Plane(1, 4, lambda run: (16 + 16 * (run % 2), run // 2))),
    d=0,
    dmin=2,
    min_sign=-1,
    group=32,
    scale=scale6,
    minimum=min6,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q - dmin * m,
)
