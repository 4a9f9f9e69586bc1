"""MXFP4: 32 four-bit floats (E2M1) with one power of two as their scale.

Bytes: e, the scale 2^(e - 127) | 16 of nibbles, low nibbles for values 0..15, high ones
for 16..31. The codebook holds twice the floats, so that it is whole, and d half the scale.
Source: OCP Microscaling Formats 1.0; ggml `block_mxfp4`.
"""

from kinetic.ir.quant.base import BlockFormat, Plane

MXFP4 = BlockFormat(
    name="MXFP4",
    ggml_id=39,
    values=32,
    nbytes=17,
    planes=(Plane(4, 0, lambda run: (1, 4 * run)),),
    d=0,
    d_e8m0=True,
    codebook=(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
    dequantize=lambda d, dmin, s, m, q: q * d,
)
