"""Q3_K: 256 values, 16 groups of 16 with 6-bit scales around 32, 3-bit codes around 4.

Bytes: 32 of high bits, bit `j` of byte `i` for value `32 j + i` | 64 of bit pairs as in
Q2_K | 12 of scales | d f16. Scale `j` has its low four bits in the nibbles of the first
8 scale bytes (high nibbles from `j = 8` on) and its top two in byte `8 + j % 4` at shift
`2 (j // 4)`. Source: ggml `block_q3_K`.
"""

from typing import Any

from kinetic.ir.quant.base import BlockFormat, Plane, Reader
from kinetic.ir.quant.q2_k import pairs


def _scale(r: Reader, j: int) -> Any:
    low = (r.u8(96 + j % 8) >> (4 * (j // 8))) & 15
    high = (r.u8(104 + j % 4) >> (2 * (j // 4))) & 3
    return (low | (high << 4)) - 32


Q3_K = BlockFormat(
    name="Q3_K",
    ggml_id=11,
    values=256,
    nbytes=110,
    planes=(pairs(32), Plane(1, 2, lambda run: (16 * (run % 2), run // 2))),
    d=108,
    zero=4,
    group=16,
    scale=_scale,
    scale_signed=True,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q,
)
