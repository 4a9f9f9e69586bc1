"""NVFP4: 64 four-bit floats (E2M1), each 16 with a scale of their own in UE4M3.

The scales are floats, so a product makes one update for each 16 values, in order, in the
chain of their 32: `acc = acc + (d * d_x) * float(isum)`.

Bytes: 4 scales | for each 16 values 8 of nibbles, low ones for values 0..7, high ones for
8..15. The codebook holds twice the floats, as in MXFP4. A scale's exponent and mantissa are
an f16's, 2^8 too small; its top bit is not read, and 0x7f means 0. Source: ggml `block_nvfp4`.
"""

from typing import Any

from kinetic.ir.quant.base import BlockFormat, Digits, Reader
from kinetic.ir.quant.mxfp4 import MXFP4


def _d_bits(r: Reader, j: int) -> Any:
    byte = r.u8(j)
    number = ((byte ^ 0x7F) + 255) >> 8
    return ((byte & 0x7F) << 7) * number


NVFP4 = BlockFormat(
    name="NVFP4",
    ggml_id=40,
    values=64,
    nbytes=36,
    planes=(Digits(16, lambda run: (4 + 8 * run, (16, 1)), bits=4),),
    d=0,
    d_bits=_d_bits,
    d_factor=128.0,
    update=16,
    codebook=MXFP4.codebook,
    dequantize=lambda d, dmin, s, m, q: d * q,
)
