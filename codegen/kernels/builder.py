"""The words a GPU kernel is written in.

A kernel is a Python function over a `Builder`. It is run once per target: with the
SPIR-V builder it leaves a shader behind, with the PTX builder LLVM IR. Python's own
`for` unrolls; `with k.loop(...)` and `with k.if_(...)` make loops and branches of the
kernel. There is no second intermediate language to learn.

Values have one of four types. `U32` and `I32` differ in compare, shift right and
conversion to float; narrow integers exist in memory only and widen when read. Float
addition, subtraction and multiplication round once, to nearest even, and are never
fused: that is the whole float vocabulary of the arithmetic contract, so there is no
division, square root or `fma` here, on purpose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum

from kinetic.errors import InternalError


class Type(Enum):
    """What a value, buffer element or parameter is; `U16` exists in buffers only."""

    BOOL = "bool"
    U16 = "u16"
    U32 = "u32"
    I32 = "i32"
    F32 = "f32"

    @property
    def nbytes(self) -> int:
        """Bytes of an element in memory."""
        return 2 if self is Type.U16 else 4


BOOL, U16, U32, I32, F32 = Type.BOOL, Type.U16, Type.U32, Type.I32, Type.F32

Number = int | float


@dataclass(frozen=True)
class Kernel:
    """A kernel by name: `body` writes it with any builder.

    *Units*: `workgroup` counts threads, all along the first axis.
    """

    name: str
    workgroup: int
    body: Callable[[Builder], None]


@dataclass(frozen=True)
class Slot:
    """A buffer or parameter of a kernel."""

    name: str
    type: Type


@dataclass(frozen=True)
class GpuCode:
    """A compiled kernel and its calling convention: buffers first, then parameters."""

    name: str
    workgroup: int
    buffers: tuple[Slot, ...]
    params: tuple[Slot, ...]
    code: bytes


@dataclass(frozen=True, eq=False)
class Value:
    """A typed value of the kernel being built; `handle` means something to its target only."""

    k: Builder
    handle: str | int
    type: Type

    def _other(self, other: Value | Number) -> Value:
        if not isinstance(other, Value):
            return self.k.const(self.type, other)
        if other.type is not self.type:
            raise InternalError(
                f"kernel {self.k.kernel.name} combines {self.type.value} with {other.type.value}; "
                "convert one of them first"
            )
        return other

    def _binary(self, op: str, other: Value | Number) -> Value:
        return self.k.binary(op, self, self._other(other))

    def __add__(self, other: Value | Number) -> Value:
        return self._binary("add", other)

    def __radd__(self, other: Number) -> Value:
        return self._other(other) + self

    def __sub__(self, other: Value | Number) -> Value:
        return self._binary("sub", other)

    def __rsub__(self, other: Number) -> Value:
        return self._other(other) - self

    def __mul__(self, other: Value | Number) -> Value:
        return self._binary("mul", other)

    def __rmul__(self, other: Number) -> Value:
        return self._other(other) * self

    def __floordiv__(self, other: Value | Number) -> Value:
        return self._binary("udiv", other)

    def __mod__(self, other: Value | Number) -> Value:
        return self._binary("urem", other)

    def __and__(self, other: Value | Number) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Value | Number) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Value | Number) -> Value:
        return self._binary("xor", other)

    def __lshift__(self, other: Value | Number) -> Value:
        return self._binary("shl", other)

    def __rshift__(self, other: Value | Number) -> Value:
        return self._binary("ashr" if self.type is I32 else "lshr", other)

    def __lt__(self, other: Value | Number) -> Value:
        return self.k.compare("lt", self, self._other(other))

    def __le__(self, other: Value | Number) -> Value:
        return self.k.compare("le", self, self._other(other))

    def __gt__(self, other: Value | Number) -> Value:
        return self.k.compare("gt", self, self._other(other))

    def __ge__(self, other: Value | Number) -> Value:
        return self.k.compare("ge", self, self._other(other))

    def equals(self, other: Value | Number) -> Value:
        """Equality as a kernel value (`==` is Python's, and compares the objects)."""
        return self.k.compare("eq", self, self._other(other))

    def as_type(self, to: Type) -> Value:
        """The same 32 bits seen as another type."""
        return self if to is self.type else self.k.reinterpret(self, to)

    def to_float(self) -> Value:
        """This integer, rounded to the nearest float."""
        return self.k.int_to_float(self)


@dataclass(eq=False)
class Variable:
    """A mutable local of one thread."""

    k: Builder
    handle: str | int
    type: Type

    @property
    def value(self) -> Value:
        """What the variable holds here."""
        return self.k.read_variable(self)

    @value.setter
    def value(self, new: Value) -> None:
        self.k.check_type(f"variable of {self.type.value}", self.type, new)
        self.k.write_variable(self, new)


@dataclass(frozen=True, eq=False)
class Array:
    """Elements in memory: a buffer of the kernel, or memory its workgroup shares."""

    k: Builder
    name: str
    handle: str | int
    type: Type
    shared: bool

    def __getitem__(self, index: Value | int) -> Value:
        return self.k.load(self, self.k.as_value(U32, index))

    def __setitem__(self, index: Value | int, value: Value) -> None:
        stored = U32 if self.type is U16 else self.type
        self.k.check_type(self.name, stored, value)
        self.k.store(self, self.k.as_value(U32, index), value)


class Builder(ABC):
    """What a target implements. Kernels use it together with the operators of `Value`."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers: list[Slot] = []
        self.params: list[Slot] = []

    # -- the kernel's interface ---------------------------------------------------

    @abstractmethod
    def buffer(self, name: str, type: Type) -> Array:
        """Declare the next buffer of the kernel."""

    @abstractmethod
    def param(self, name: str, type: Type) -> Value:
        """Declare the next 32-bit parameter of the kernel."""

    @abstractmethod
    def shared(self, type: Type, length: int) -> Array:
        """Declare memory that the threads of a workgroup share; it starts undefined."""

    @abstractmethod
    def thread(self) -> Value:
        """Index of this thread in its workgroup."""

    @abstractmethod
    def group(self, axis: int) -> Value:
        """Index of this workgroup along an axis of the grid."""

    # -- control ------------------------------------------------------------------

    @abstractmethod
    def loop(
        self, start: Value | int, stop: Value | int, step: int = 1
    ) -> AbstractContextManager[Value]:
        """Repeat the body for `start, start + step, ...` below `stop`; yields the index."""

    @abstractmethod
    def if_(self, condition: Value) -> AbstractContextManager[None]:
        """Run the body where the condition holds."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for the whole workgroup; its shared memory is then seen by all of it."""

    @abstractmethod
    def variable(self, initial: Value) -> Variable:
        """A mutable local that starts with a value."""

    # -- operations ---------------------------------------------------------------

    @abstractmethod
    def const(self, type: Type, value: Number) -> Value:
        """A constant: integers modulo 2^32, floats rounded to binary32."""

    @abstractmethod
    def binary(self, op: str, a: Value, b: Value) -> Value:
        """`add sub mul`; integers also `and or xor shl lshr ashr`; `U32` also `udiv urem`."""

    @abstractmethod
    def compare(self, op: str, a: Value, b: Value) -> Value:
        """`lt le gt ge eq`; false where a float is NaN."""

    @abstractmethod
    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`."""

    @abstractmethod
    def reinterpret(self, a: Value, to: Type) -> Value:
        """The same bits as another 32-bit type."""

    @abstractmethod
    def int_to_float(self, a: Value) -> Value:
        """Integer to the nearest float."""

    @abstractmethod
    def half_to_float(self, bits: Value) -> Value:
        """The f16 in the low 16 bits of a `U32`, widened exactly; the high bits are zero."""

    @abstractmethod
    def dot4(self, a: Value, b: Value, total: Value) -> Value:
        """`total` plus the dot product of two words of four signed bytes each, exactly."""

    # -- memory -------------------------------------------------------------------

    @abstractmethod
    def load(self, array: Array, index: Value) -> Value:
        """Element of a buffer or of shared memory."""

    @abstractmethod
    def store(self, array: Array, index: Value, value: Value) -> None:
        """Write an element; a `U16` element takes the low half of a `U32`."""

    @abstractmethod
    def read_variable(self, variable: Variable) -> Value:
        """Value of a local."""

    @abstractmethod
    def write_variable(self, variable: Variable, value: Value) -> None:
        """Set a local."""

    @abstractmethod
    def finish(self) -> bytes:
        """The target's code for everything built so far."""

    # -- shared by all targets ----------------------------------------------------

    def as_value(self, type: Type, value: Value | Number) -> Value:
        """A Python number as a constant, a value as it is."""
        return value if isinstance(value, Value) else self.const(type, value)

    def check_type(self, where: str, expected: Type, value: Value) -> None:
        """Refuse to store a value of another type.

        *Raises*: `InternalError`.
        """
        if value.type is not expected:
            raise InternalError(
                f"kernel {self.kernel.name} stores {value.type.value} in {where}, "
                f"which takes {expected.value}; convert it first"
            )

    def minimum(self, a: Value, b: Value | Number) -> Value:
        """`select(a < b, a, b)`."""
        other = self.as_value(a.type, b)
        return self.select(a < other, a, other)

    def maximum(self, a: Value, b: Value | Number) -> Value:
        """`select(a > b, a, b)`, which is the contract's `max`."""
        other = self.as_value(a.type, b)
        return self.select(a > other, a, other)

    def build(self) -> GpuCode:
        """Run the kernel's body and return the code."""
        self.kernel.body(self)
        return GpuCode(
            self.kernel.name,
            self.kernel.workgroup,
            tuple(self.buffers),
            tuple(self.params),
            self.finish(),
        )
