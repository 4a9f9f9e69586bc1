"""What codegen hands to the runtime: kernels, a launch plan and a memory plan.

A program is one step function: given rows (tokens, positions, cache slots, which
outputs are wanted) it writes caches and outputs. It knows nothing of threads, files or
addresses; the device binds those once, when it loads the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from kinetic.ir.ops.spec import Attr


class ArgKind(Enum):
    """What an argument of a launch stands for, and what `Arg.value` then is."""

    INT = "a number"
    FLOAT = "an f32 number"
    BUFFER = "the address of an offset in the arena"
    PACKED = "the address of a packed matrix, by key"
    VECTOR = "the address of an f32 vector, by key"
    RAW = "the address of a tensor's bytes as the file has them, by name"
    CACHE_K = "the key pages of a cache, by name"
    CACHE_V = "the value pages of a cache, by name"
    STATE = "a layer's state in slot 0, by name"
    STATE_STRIDE = "bytes from a slot to the next"
    COS = "the cosines of a rope table, by number"
    SIN = "the sines of a rope table, by number"
    STEP = "the step block"
    COUNT = "the address of the step's row count: T, or R for wanted rows"
    SCRATCH = "memory shared by all launches, of the size the program asks for"
    CHUNK = "row groups that a thread draws at once, given the row groups in all"


@dataclass(frozen=True)
class Arg:
    """One argument of a launch."""

    kind: ArgKind
    value: int | float | str = 0


@dataclass(frozen=True)
class Launch:
    """One kernel call. `barrier`: all threads meet after it. `node`: the value it makes."""

    kernel: str
    args: tuple[Arg, ...]
    barrier: bool
    node: str


@dataclass(frozen=True)
class Part:
    """Rows `first` to `first + count` of each of a tensor's matrices, which have `of` rows."""

    first: int
    count: int
    of: int


@dataclass(frozen=True)
class PackedWeight:
    """A matrix to repack at load. `rows` is the range of the tensor's first axis; of the
    matrices of experts, a range of the rows of all, or of those that `part` takes."""

    key: str
    tensor: str
    format_name: str
    rows: tuple[int, int]
    columns: int
    nbytes: int
    kernel: str
    part: Part | None = None


@dataclass(frozen=True)
class VectorWeight:
    """A vector to widen to f32 at load, padded to eight; a small matrix, row by row or, where it
    is `transposed`, column by column."""

    key: str
    tensor: str
    rows: tuple[int, int]
    transposed: bool = False


@dataclass(frozen=True)
class CacheLayout:
    """An attention cache: heads, channels of a head, and bytes of a page of keys."""

    heads: int
    width: int
    page_bytes: int
    window: int | None


@dataclass(frozen=True)
class StateLayout:
    """A recurrent layer's state: f32 `[heads, rows, columns]` at `offset` bytes of a slot."""

    heads: int
    rows: int
    columns: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the state, padded to a cache line."""
        return -(-4 * self.heads * self.rows * self.columns // 64) * 64


@dataclass(frozen=True)
class RopeTable:
    """The attributes of a rope table (see `ir/rope_tables.py`); `factors` names a tensor."""

    attrs: tuple[tuple[str, Attr], ...]
    factors: str | None = None


@dataclass(frozen=True)
class Output:
    """Where a named output lies in the arena: rows of `stride` bytes, `width` floats used."""

    offset: int
    stride: int
    width: int


@dataclass(frozen=True)
class Program:
    """A compiled model for one device class.

    *Units*: bytes, except `max_rows` and `max_outputs` (rows of one step).
    """

    device_class: str
    ir_hash: str
    kv_type: str
    max_rows: int
    max_outputs: int
    launches: tuple[Launch, ...]
    packed: tuple[PackedWeight, ...]
    vectors: tuple[VectorWeight, ...]
    caches: Mapping[str, CacheLayout]
    tables: tuple[RopeTable, ...]
    outputs: Mapping[str, Output]
    arena_bytes: int
    state_bytes: int
    """Largest attention state of one (row, key/value head, segment)."""
    link: Callable[[], Mapping[str, int]]
    """Puts the machine code into this process; kernel addresses by name."""
    states: Mapping[str, StateLayout] = field(default_factory=dict)
    """Recurrent layers; one slot holds the states of all of them."""
    hidden: int = 0
    """Values of the vector that comes with each row, 0 where none does."""
    whole_texts: bool = False
    """A step takes each sequence whole and in order: rows see, or are pooled with, later ones."""
    n_positions: int | None = None
    """Positions of the model's own table, where it has one: none may lie beyond."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: what a sequence's recurrent layers know at one point of it."""
        return sum(layout.nbytes for layout in self.states.values())
