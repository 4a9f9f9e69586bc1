"""What a value of the IR is: a dtype and a shape, or the form a weight is stored in.

Shapes are written in letters where they vary from step to step: `T` is the number of
rows of a step, `R` the number of rows whose outputs are wanted. All other extents are
known when the graph is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Dim = int | str
"""One extent: a number, or the letter of one that changes with each step."""


class DType(Enum):
    """The type of one element."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    i32 = "i32"
    i8 = "i8"
    u8 = "u8"
    bool_ = "bool"

    def __str__(self) -> str:
        return self.value


def shape_text(shape: tuple[Dim, ...]) -> str:
    """`[T, 64]`."""
    return "[" + ", ".join(str(d) for d in shape) + "]"


@dataclass(frozen=True)
class TensorType:
    """Plain elements, row-major, the last axis contiguous."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{shape_text(self.shape)}"


@dataclass(frozen=True)
class WeightType:
    """A tensor of the model file, in the format (`"Q4_K"`, `"F32"`) that it is stored in."""

    format_name: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.format_name.lower()}{shape_text(self.shape)}"


@dataclass(frozen=True)
class QuantType:
    """Rows of activations as int8 with one f32 scale for each `block` values."""

    block: int
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"i8x{self.block}{shape_text(self.shape)}"


@dataclass(frozen=True)
class RoutingType:
    """For each of `rows` rows the `used` of `experts` experts it goes to, and their weights."""

    rows: Dim
    used: int
    experts: int

    def __str__(self) -> str:
        return f"routing[{self.rows}, {self.used} of {self.experts}]"


@dataclass(frozen=True)
class OrderType:
    """No data: a value of this type only puts a write before the reads that take it."""

    def __str__(self) -> str:
        return "order"


Type = TensorType | WeightType | QuantType | RoutingType | OrderType


def f32(*shape: Dim) -> TensorType:
    """The type of an f32 tensor."""
    return TensorType(DType.f32, shape)
