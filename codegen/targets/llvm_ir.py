"""A typed builder of LLVM IR text: what the CPU kernels are written over.

Kernels are Python functions that call this builder; running one yields the text of one
LLVM function. Values carry their type and overload arithmetic, so `acc + w * x` is an
`fmul` and an `fadd` on whatever vector the operands are. No flag that would let LLVM
reassociate, contract or approximate is ever printed: the words a kernel computes are
those it spells (docs/arithmetic.md).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from kinetic.errors import InternalError

_VECTOR = re.compile(r"<(\d+) x (\w+)>")


def vec(lanes: int, scalar: str) -> str:
    """The vector type `<lanes x scalar>`."""
    return f"<{lanes} x {scalar}>"


def lanes_of(type_: str) -> int:
    """Lanes of a type; 0 for a scalar."""
    match = _VECTOR.fullmatch(type_)
    return int(match[1]) if match else 0


def scalar_of(type_: str) -> str:
    """The element type of a vector type, or the scalar type itself."""
    match = _VECTOR.fullmatch(type_)
    return match[2] if match else type_


def float_bits(value: float) -> str:
    """A binary32 constant in LLVM's exact hexadecimal spelling."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value or constant: its LLVM type and its spelling."""

    fn: Function
    type: str
    ref: str

    def _binary(self, other: Value | int | float, int_op: str, float_op: str | None) -> Value:
        op = float_op if scalar_of(self.type) == "float" else int_op
        if op is None:
            raise InternalError(f"{self.fn.name}: {int_op} has no float form")
        return self.fn.binary(op, self, self.fn.coerce(other, self.type))

    def __add__(self, other: Value | int | float) -> Value:
        return self._binary(other, "add", "fadd")

    def __sub__(self, other: Value | int | float) -> Value:
        return self._binary(other, "sub", "fsub")

    def __rsub__(self, other: int | float) -> Value:
        return self.fn.coerce(other, self.type) - self

    def __mul__(self, other: Value | int | float) -> Value:
        return self._binary(other, "mul", "fmul")

    __radd__ = __add__
    __rmul__ = __mul__

    def __and__(self, other: Value | int) -> Value:
        return self._binary(other, "and", None)

    def __or__(self, other: Value | int) -> Value:
        return self._binary(other, "or", None)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary(other, "xor", None)

    def __lshift__(self, other: Value | int) -> Value:
        return self if _is_zero(other) else self._binary(other, "shl", None)

    def __rshift__(self, other: Value | int) -> Value:
        """Logical shift right."""
        return self if _is_zero(other) else self._binary(other, "lshr", None)

    def ashr(self, other: Value | int) -> Value:
        """Arithmetic shift right."""
        return self._binary(other, "ashr", None)

    def udiv(self, other: Value | int) -> Value:
        """Unsigned quotient."""
        return self._binary(other, "udiv", None)

    def urem(self, other: Value | int) -> Value:
        """Unsigned remainder."""
        return self._binary(other, "urem", None)

    def compare(self, predicate: str, other: Value | int | float) -> Value:
        """`icmp` or `fcmp` by LLVM's predicate name (`slt`, `ult`, `eq`, `ogt`, ...)."""
        op = "fcmp" if scalar_of(self.type) == "float" else "icmp"
        other = self.fn.coerce(other, self.type)
        lanes = lanes_of(self.type)
        return self.fn.emit(
            f"{op} {predicate} {self.type} {self.ref}, {other.ref}",
            vec(lanes, "i1") if lanes else "i1",
        )

    def cast(self, op: str, type_: str) -> Value:
        """A conversion instruction: `zext`, `sext`, `trunc`, `bitcast`, `sitofp`, ..."""
        if self.type == type_:
            return self
        return self.fn.emit(f"{op} {self.type} {self.ref} to {type_}", type_)

    def at(self, lane: int) -> Value:
        """One lane of a vector."""
        return self.fn.emit(
            f"extractelement {self.type} {self.ref}, i32 {lane}", scalar_of(self.type)
        )


def _is_zero(value: Value | int | float) -> bool:
    return isinstance(value, int) and value == 0


@dataclass
class Loop:
    """An open loop: its index, the values it carries, and what they become."""

    index: Value
    carried: list[Value]
    next: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


class Function:
    """One LLVM function under construction.

    `args` are (type, name) pairs; `self.arg[name]` is the value. `declares` collects the
    intrinsics used. Addresses are byte offsets from pointers: `load(type, p, offset)`.
    """

    def __init__(self, name: str, args: Sequence[tuple[str, str]], returns: str = "void"):
        self.name = name
        self.args = list(args)
        self.returns = returns
        self.arg = {n: Value(self, t, f"%{n}") for t, n in args}
        self.declares: set[str] = set()
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._count = 0
        self._block = "entry"
        self._const_geps: dict[tuple[str, int], Value] = {}

    # -- plumbing -----------------------------------------------------------------
    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append("  " + text)

    def emit(self, text: str, type_: str) -> Value:
        """An instruction with a result."""
        ref = self._fresh("%v")
        self._lines.append(f"  {ref} = {text}")
        return Value(self, type_, ref)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """A two-operand instruction on equal types."""
        if a.type != b.type:
            raise InternalError(f"{self.name}: {op} of {a.type} and {b.type}")
        return self.emit(f"{op} {a.type} {a.ref}, {b.ref}", a.type)

    def coerce(self, value: Value | int | float, type_: str) -> Value:
        """The value itself, or a Python number as a constant of the type."""
        return value if isinstance(value, Value) else self.const(type_, value)

    def const(self, type_: str, value: int | float) -> Value:
        """A constant; a vector type gives a splat."""
        scalar = scalar_of(type_)
        text = float_bits(value) if scalar == "float" else str(int(value))
        if lanes_of(type_):
            text = f"splat ({scalar} {text})"
        return Value(self, type_, text)

    def vector(self, scalar: str, items: Sequence[int]) -> Value:
        """A constant vector of integers."""
        text = ", ".join(f"{scalar} {item}" for item in items)
        return Value(self, vec(len(items), scalar), f"<{text}>")

    def table(self, name: str, data: bytes) -> Value:
        """The address of constant bytes, which functions of a module share by name."""
        text = "".join(f"\\{byte:02X}" for byte in data)
        self.declares.add(
            f'@{name} = private unnamed_addr constant [{len(data)} x i8] c"{text}", align 16'
        )
        return Value(self, "ptr", f"@{name}")

    def zero(self, type_: str) -> Value:
        """All bits zero."""
        return Value(self, type_, "zeroinitializer" if lanes_of(type_) else self._zero(type_))

    @staticmethod
    def _zero(type_: str) -> str:
        return {"float": "0.0", "ptr": "null"}.get(type_, "0")

    def call(self, name: str, returns: str, *args: Value, flags: str = "") -> Value:
        """A call of a declared function or intrinsic; `flags` is appended (`i1 false`)."""
        types = ", ".join([a.type for a in args] + ([flags.split()[0]] if flags else []))
        self.declares.add(f"declare {returns} @{name}({types})")
        return self.call_local(name, returns, *args, flags=flags)

    def call_local(self, name: str, returns: str, *args: Value, flags: str = "") -> Value:
        """A call of a function of the same module."""
        text = ", ".join([f"{a.type} {a.ref}" for a in args] + ([flags] if flags else []))
        if returns == "void":
            self.line(f"call void @{name}({text})")
            return Value(self, "void", "")
        return self.emit(f"call {returns} @{name}({text})", returns)

    # -- memory -------------------------------------------------------------------
    def gep(self, pointer: Value, offset: Value | int) -> Value:
        """`pointer` moved by `offset` bytes."""
        if _is_zero(offset):
            return pointer
        offset = self.coerce(offset, "i64")
        return self.emit(f"getelementptr i8, ptr {pointer.ref}, i64 {offset.ref}", "ptr")

    def load(self, type_: str, pointer: Value, offset: Value | int = 0, align: int = 1) -> Value:
        """Load a value `offset` bytes from `pointer`."""
        address = self.gep(pointer, offset)
        return self.emit(f"load {type_}, ptr {address.ref}, align {align}", type_)

    def store(self, value: Value, pointer: Value, offset: Value | int = 0, align: int = 1) -> None:
        """Store a value `offset` bytes from `pointer`."""
        address = self.gep(pointer, offset)
        self.line(f"store {value.type} {value.ref}, ptr {address.ref}, align {align}")

    def alloca(self, type_: str, count: int = 1, align: int = 32) -> Value:
        """Stack space for `count` values, live for the whole function."""
        ref = self._fresh("%a")
        self._allocas.append(f"  {ref} = alloca {type_}, i32 {count}, align {align}")
        return Value(self, "ptr", ref)

    def splat(self, value: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        type_ = vec(lanes, value.type)
        first = self.emit(f"insertelement {type_} poison, {value.type} {value.ref}, i32 0", type_)
        return self.shuffle(first, [0] * lanes)

    def load_splat(self, scalar: str, lanes: int, pointer: Value, offset: Value | int = 0) -> Value:
        """A scalar from memory in every lane (a broadcasting load)."""
        return self.splat(self.load(scalar, pointer, offset), lanes)

    def shuffle(self, a: Value, mask: Sequence[int], b: Value | None = None) -> Value:
        """`shufflevector` of one or two vectors by a constant mask."""
        other = b.ref if b is not None else "poison"
        text = ", ".join(f"i32 {m}" for m in mask)
        return self.emit(
            f"shufflevector {a.type} {a.ref}, {a.type} {other}, <{len(mask)} x i32> <{text}>",
            vec(len(mask), scalar_of(a.type)),
        )

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`."""
        return self.emit(
            f"select {condition.type} {condition.ref}, {a.type} {a.ref}, {b.type} {b.ref}", a.type
        )

    def minimum(self, a: Value, b: Value | int) -> Value:
        """The smaller of two signed integers."""
        other = self.coerce(b, a.type)
        return self.select(a.compare("slt", other), a, other)

    def prefetch(self, pointer: Value, offset: Value | int) -> None:
        """Ask for the cache line `offset` bytes ahead."""
        address = self.gep(pointer, offset)
        self.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {address.ref}, i32 0, i32 3, i32 1)")

    # -- control ------------------------------------------------------------------
    def label(self, name: str) -> None:
        """Begin a basic block."""
        self._lines.append(f"{name}:")
        self._block = name

    def branch(self, name: str) -> None:
        """Jump."""
        self.line(f"br label %{name}")

    def new_label(self, prefix: str) -> str:
        """A label name not used before."""
        return self._fresh(prefix)

    @contextmanager
    def loop(
        self,
        start: Value | int,
        stop: Value | int,
        step: Value | int = 1,
        carry: Sequence[Value] = (),
    ) -> Iterator[Loop]:
        """`for index in range(start, stop, step)`, with SSA values carried round.

        Set `loop.next` to the carried values' next versions inside the body; after the
        loop `loop.results` holds the last ones.
        """
        first, last = self.coerce(start, "i64"), self.coerce(stop, "i64")
        head, body, back, after = (self.new_label(p) for p in ("head", "body", "back", "after"))
        entry = self.new_label("pre")
        self.branch(entry)
        self.label(entry)
        self.branch(head)
        self.label(head)
        index = Value(self, "i64", self._fresh("%i"))
        carried = [Value(self, c.type, self._fresh("%c")) for c in carry]
        hole = len(self._lines)
        self._lines.extend([""] * (1 + len(carry)))
        go = index.compare("slt", last)
        self.line(f"br i1 {go.ref}, label %{body}, label %{after}")
        self.label(body)
        state = Loop(index, carried, results=carried)
        yield state
        if len(state.next) != len(carry):
            raise InternalError(f"{self.name}: a loop carries {len(carry)} values")
        self.branch(back)
        self.label(back)
        following = index + step
        self.branch(head)
        self._lines[hole] = (
            f"  {index.ref} = phi i64 [ {first.ref}, %{entry} ], [ {following.ref}, %{back} ]"
        )
        for k, (phi, init) in enumerate(zip(carried, carry, strict=True)):
            self._lines[hole + 1 + k] = (
                f"  {phi.ref} = phi {phi.type} [ {init.ref}, %{entry} ], "
                f"[ {state.next[k].ref}, %{back} ]"
            )
        self.label(after)

    @contextmanager
    def if_(self, condition: Value) -> Iterator[None]:
        """Run the body when the condition holds."""
        then, after = self.new_label("then"), self.new_label("endif")
        self.line(f"br i1 {condition.ref}, label %{then}, label %{after}")
        self.label(then)
        yield
        self.branch(after)
        self.label(after)

    def ret(self, result: Value | None = None) -> Self:
        """End the function."""
        self.line("ret void" if result is None else f"ret {result.type} {result.ref}")
        return self

    @property
    def text(self) -> str:
        """The function as LLVM IR."""
        args = ", ".join(f"{t} %{n}" for t, n in self.args)
        body = "\n".join(self._allocas + self._lines)
        return f"define {self.returns} @{self.name}({args}) #0 {{\nentry:\n{body}\n}}\n"
