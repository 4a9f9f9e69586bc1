"""What a weight format *is*: where the bits of a block lie and what they mean, as data.

From one declaration come the numpy reference and dequantizer (`decode.py`), the x86
kernels and their repacked layout, the GPU kernels and the docs table. Nothing here
computes; adding a format is one file that builds one of these objects.

A code is an unsigned integer put together from *planes* of 1, 2, 4 or 8 bits. A *run*
is 16 consecutive values; in a plane it is 16 consecutive bytes read at one shift, which
is what a vector unit and a GPU thread both like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

RUN = 16
"""Values of a run."""


class Reader(Protocol):
    """One block's bytes, as integers of whatever the target computes with.

    The results support `& | << >> + -` with each other and with Python ints.
    """

    def u8(self, offset: int) -> Any:
        """Byte at `offset`, 0..255."""

    def s8(self, offset: int) -> Any:
        """Byte at `offset`, -128..127."""


@dataclass(frozen=True)
class Plane:
    """`bits` bits of every code, placed at bit `place` of the code.

    `at(run)` gives (byte offset of the run's 16 bytes, right shift of each byte).
    """

    bits: int
    place: int
    at: Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class BitMask:
    """Codes packed one after the other: value `i` is the `bits` bits from bit `i * bits` on.

    For one bit that is bit `i % 8` of byte `offset + i // 8`.
    """

    place: int
    offset: int
    bits: int = 1


@dataclass(frozen=True)
class BlockFormat:
    """A block-quantized format: `w = d * s_j * (q - zero)`, then the minimum's term.

    `min_sign` is -1 for `- dmin * m_j` (K formats), +1 for `+ dmin` (Q4_1, Q5_1, where
    `m_j` is 1), 0 for formats without a minimum. `flip` is xor-ed into the code, which
    turns signed bytes into unsigned codes. `group` values share an integer scale.
    `dequantize(d, dmin, s, m, q)` is ggml's float expression, `q` being `code - zero`, or
    `codebook[code]` where there is a codebook. `d` is an f16, or with `d_e8m0` one byte `e`
    that means 2^(e - 128).
    """

    name: str
    ggml_id: int
    values: int
    nbytes: int
    planes: tuple[Plane | BitMask, ...]
    d: int
    dequantize: Callable[[Any, Any, Any, Any, Any], Any]
    zero: int = 0
    flip: int = 0
    dmin: int | None = None
    min_sign: int = 0
    group: int | None = None
    scale: Callable[[Reader, int], Any] | None = None
    minimum: Callable[[Reader, int], Any] | None = None
    scale_signed: bool = False
    codebook: tuple[int, ...] | None = None
    d_e8m0: bool = False

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return sum(plane.bits for plane in self.planes)

    @property
    def group_values(self) -> int:
        """Values that share one integer scale (the whole block where there is none)."""
        return self.group or self.values

    @property
    def groups(self) -> int:
        """Integer scales of a block."""
        return self.values // self.group_values

    @property
    def bits_per_weight(self) -> float:
        """Storage, in bits a weight."""
        return self.nbytes * 8 / self.values


@dataclass(frozen=True)
class FloatFormat:
    """A format that stores plain floats: F32, F16 or BF16."""

    name: str
    ggml_id: int
    nbytes: int
    values: int = 1

    @property
    def bits_per_weight(self) -> float:
        """Storage, in bits a weight."""
        return self.nbytes * 8.0


Format = BlockFormat | FloatFormat
