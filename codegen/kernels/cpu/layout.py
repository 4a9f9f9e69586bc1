"""The repacked weight layout: eight output rows interleaved, planes of code bits.

A *packed block* holds one activation block's worth of eight consecutive rows:

    d      f16[8]                         scale of each row (bf16 for e8m0), for each update
    dmin   f16[8]                         where the format has a minimum
    scales u8[groups/2][8 rows][2]        integer scales in pairs of groups
    minima u8[groups/2][8 rows][2]
    codes  for each 32 values: planes of 32-byte vectors

Eight *k-groups* of four values make 32 values. In a vector of codes, dword lane `r`
belongs to row `r` and its four bytes are the four values of one k-group, so one vector
times one broadcast dword of activations is four products of each of eight rows: no
horizontal sums, and the same layout serves one row of activations and 512.

A plane of width `w` bits (codes are cut into planes of 8, 4, 2, 1) takes `w` vectors a
32 values; vector `v` holds k-groups `v, v + w, v + 2w, ...` at shifts `0, w, 2w, ...`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinetic.ir.cpu_abi import ROWS
from kinetic.ir.quant.base import BlockFormat, FloatFormat, Format

GROUPS32 = 8
"""k-groups of four values in 32."""
VECTOR = 32
"""Bytes of a vector of codes."""


def plane_widths(bits: int) -> list[tuple[int, int]]:
    """Planes of a code as (width, place), low bits first.

    >>> plane_widths(6)
    [(4, 0), (2, 4)]
    """
    planes, place = [], 0
    for width in (8, 4, 2, 1):
        while bits - place >= width:
            planes.append((width, place))
            place += width
    return planes


@dataclass(frozen=True)
class Packed:
    """Byte offsets inside a packed block of one format."""

    fmt: BlockFormat

    @property
    def dmin(self) -> int:
        """Offset of the minima's f16 scales."""
        return 16 * self.fmt.updates

    @property
    def scales(self) -> int:
        """Offset of the integer scales."""
        return self.dmin if self.fmt.dmin is None else self.dmin + 16

    @property
    def has_scales(self) -> bool:
        """Whether the format has integer group scales."""
        return self.fmt.scale is not None

    @property
    def has_minima(self) -> bool:
        """Whether the format has integer group minima."""
        return self.fmt.minimum is not None

    @property
    def minima(self) -> int:
        """Offset of the integer minima."""
        return self.scales + (self.fmt.groups * ROWS if self.has_scales else 0)

    @property
    def codes(self) -> int:
        """Offset of the codes of the first 32 values."""
        return self.minima + (self.fmt.groups * ROWS if self.has_minima else 0)

    @property
    def codes32(self) -> int:
        """Bytes of the codes of 32 values."""
        return self.fmt.bits * VECTOR

    @property
    def nbytes(self) -> int:
        """Bytes of a packed block (eight rows); a block of the file makes `parts` of them."""
        return self.codes + self.codes32 * (self.fmt.block // 32)


def packed_size(fmt: Format, rows: int, columns: int) -> int:
    """Bytes of a repacked matrix; rows are padded to a multiple of eight."""
    groups = -(-rows // ROWS)
    if isinstance(fmt, FloatFormat):
        return groups * ROWS * columns * fmt.nbytes
    return groups * (columns // fmt.block) * Packed(fmt).nbytes
