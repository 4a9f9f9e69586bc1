"""What codegen hands to a GPU device: shaders, launches over a grid, and where buffers lie.

Launches are the same whatever the step's size: what depends on it is written as an
`Extent`, so a device may record them once for each shape of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kinetic.ir.program import Program


class Space(Enum):
    """Where a buffer lies, and what `Bound.key` then is."""

    ARENA = "values of the step; no key"
    STEP = "what comes with the rows, by name"
    WEIGHT = "a tensor's rows as the file has them, by key"
    VECTOR = "a vector widened to f32, by key"
    KEYS = "the key pages of a cache, by name"
    VALUES = "the value pages of a cache, by name"
    SCRATCH = "partial results, `nbytes` for each segment of the context, by name"


@dataclass(frozen=True)
class Bound:
    """A range that a launch reads or writes. *Units*: bytes."""

    space: Space
    key: str = ""
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Extent:
    """`ceil(count * times / per)`; `count` is T, R, S (segments), W (page table) or 1."""

    count: str
    times: int = 1
    per: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        """The number for a step of these sizes."""
        return -(-sizes[self.count] * self.times // self.per)


@dataclass(frozen=True)
class Shader:
    """Compiled code: `buffers` are bindings from 0, `params` 32-bit words of push constants."""

    name: str
    buffers: int
    params: int
    code: bytes


@dataclass(frozen=True)
class GpuLaunch:
    """One dispatch. `barrier`: what came before has to be done first.

    `wide`, where there is one, takes the place of `shader` in steps of several rows: with
    `wide_grid`, equal results.
    """

    shader: str
    buffers: tuple[Bound, ...]
    params: tuple[int | Extent, ...]
    grid: tuple[Extent, Extent, Extent]
    barrier: bool
    node: str
    wide: str | None = None
    wide_grid: tuple[Extent, Extent, Extent] | None = None


@dataclass(frozen=True)
class FileRows:
    """Rows of a tensor, uploaded as the file has them."""

    tensor: str
    rows: tuple[int, int]
    nbytes: int


@dataclass(frozen=True)
class GpuProgram(Program):
    """A program for a GPU class; `launches`, `packed` and `link` of the CPU's are empty."""

    shaders: Mapping[str, Shader] = field(default_factory=dict)
    dispatches: tuple[GpuLaunch, ...] = ()
    weights: Mapping[str, FileRows] = field(default_factory=dict)
    embeds: Mapping[str, int] = field(default_factory=dict)
    """Tables that rows are looked up in before the step, and the width of their rows."""
    scratch: Mapping[str, int] = field(default_factory=dict)
    """Bytes for each segment of the context."""
