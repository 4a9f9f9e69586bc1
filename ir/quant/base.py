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
from functools import cached_property
from typing import Any, Protocol

RUN = 16
"""Values of a run."""


class Reader(Protocol):
    """One block's bytes, as integers of whatever the target computes with.

    The results support `& | ^ << >> + - *` with Python ints and `& | ^ + - *` with each other.
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
class Digits:
    """Codes as digits: value `i` is the top digit in base `radix` of a byte times a factor.

    `at(run)` gives (byte offset, factors): the run is read from `16 / len(factors)` bytes,
    once with each factor, the product taken modulo 256.
    """

    radix: int
    at: Callable[[int], tuple[int, tuple[int, ...]]]
    bits: int
    place: int = 0


@dataclass(frozen=True)
class Grid:
    """Several neighbouring codes at once: entry `index(reader, j)` of a table of them.

    Entry `j` of a block covers values `width * j` on; `table` holds `width` bytes an entry.
    """

    bits: int
    width: int
    table: bytes
    index: Callable[[Reader, int], Any]
    place: int = 0


@dataclass(frozen=True)
class Mask8:
    """One bit of every code, eight values at a time: bit `i` of `at(reader, j)` for `8 j + i`."""

    place: int
    at: Callable[[Reader, int], Any]
    bits: int = 1


AnyPlane = Plane | BitMask | Digits | Grid | Mask8


@dataclass(frozen=True)
class BlockFormat:
    """A block-quantized format: `w = d * s_j * (q - zero)`, then the minimum's term.

    `min_sign` is -1 for `- dmin * m_j` (K formats), +1 for `+ dmin` (Q4_1, Q5_1, where
    `m_j` is 1), 0 for formats without a minimum. `flip` is xor-ed into the code, which
    turns signed bytes into unsigned codes. `group` values share an integer scale.
    `dequantize(d, dmin, s, m, q)` is ggml's float expression, `q` being `code - zero`, or
    `codebook[code]` where there is a codebook. `d` is an f16, or with `d_e8m0` one byte `e`
    that means 2^(e - 128). Where it is not simply the f16 at byte `d`, `d_bits(reader, j)`
    gives the bits of the f16 of update `j` of the block. `d_factor`, a power of two, is
    part of `d`.

    A product cuts its rows into blocks of `block` values, which are 32 or 256. It takes one
    update a block, or one for each `update` values where those have a `d` of their own.
    """

    name: str
    ggml_id: int
    values: int
    nbytes: int
    planes: tuple[AnyPlane, ...]
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
    d_bits: Callable[[Reader, int], Any] | None = None
    d_factor: float = 1.0
    update: int | None = None

    @property
    def block(self) -> int:
        """Values of an activation block, 32 or 256."""
        return 256 if self.values == 256 else 32

    @property
    def parts(self) -> int:
        """Activation blocks that a block of weights meets."""
        return self.values // self.block

    @property
    def update_values(self) -> int:
        """Values of one float update of the product."""
        return self.update or self.block

    @property
    def updates(self) -> int:
        """Float updates an activation block."""
        return self.block // self.update_values

    @cached_property
    def dot_zero(self) -> int:
        """What kernels add to a quant to make it unsigned: 128 where it needs eight bits."""
        if self.codebook is None:
            return self.zero
        low, high = min(self.codebook), max(self.codebook)
        return -low if high - low < 128 else 128

    @cached_property
    def dot_top(self) -> int:
        """The largest unsigned number that kernels multiply by."""
        if self.codebook is None:
            return (1 << self.bits) - 1
        return max(self.codebook) + self.dot_zero

    @property
    def dot_table(self) -> tuple[int, ...] | None:
        """Code to unsigned number, where that is not the code itself."""
        if self.codebook is None:
            return None
        return tuple(value + self.dot_zero for value in self.codebook)

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
