"""Q4_K: 256 values, 8 groups of 32 with 6-bit scales and minima, 4-bit codes.

Bytes: d f16 | dmin f16 | 12 bytes of packed 6-bit scales and minima | 128 bytes of
nibbles, where 64 values share 32 bytes: low nibbles first, then high ones.
Source: ggml `block_q4_K`.
"""

from __future__ import annotations

from typing import Any

from kinetic.ir.quant.base import BlockFormat, Plane, Reader


def scale6(r: Reader, j: int) -> Any:
    """Scale of group `j` in the 12 packed bytes that start at byte 4 of a K block."""
    if j < 4:
        return r.u8(4 + j) & 63
    return (r.u8(8 + j) & 15) | ((r.u8(j) >> 6) << 4)


def min6(r: Reader, j: int) -> Any:
    """Minimum of group `j`, packed beside the scales."""
    if j < 4:
        return r.u8(8 + j) & 63
    return (r.u8(8 + j) >> 4) | ((r.u8(4 + j) >> 6) << 4)


def nibbles(base: int) -> Plane:
    """The 4-bit plane that Q4_K and Q5_K share: chunks of 64 values in 32 bytes."""
    return Plane(4, 0, lambda run: (base + 32 * (run // 4) + 16 * (run % 2), 4 * (run // 2 % 2)))


Q4_K = BlockFormat(
    name="Q4_K",
    ggml_id=12,
    values=256,
    nbytes=144,
    planes=(nibbles(16),),
    d=0,
    dmin=2,
    min_sign=-1,
    group=32,
    scale=scale6,
    minimum=min6,
    dequantize=lambda d, dmin, s, m, q: (d * s) * q - dmin * m,
)
