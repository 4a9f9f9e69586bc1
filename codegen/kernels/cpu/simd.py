"""Vector vocabulary shared by the CPU kernels: types, f16, trees, the maths builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import kinetic.ir.math as kmath
from kinetic.codegen.targets.llvm_ir import Function, Value, lanes_of, scalar_of, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import KERNEL_ARGS, OP_ARGS, OP_COUNTER, WORD

LANES = 8
F32 = vec(8, "float")
I32 = vec(8, "i32")
I16 = vec(16, "i16")
I8 = vec(32, "i8")


class CpuFunction(Function):
    """A function for one CPU target."""

    def __init__(self, name: str, args: Sequence[tuple[str, str]], target: CpuTarget):
        super().__init__(name, args)
        self.target = target


class Kernel(CpuFunction):
    """A plan operation: `void kernel(op, thread, threads)`.

    Arguments come from the operation record in the order they are asked for.
    """

    def __init__(self, name: str, target: CpuTarget):
        super().__init__(name, KERNEL_ARGS, target)
        self.ith, self.nth = self.arg["ith"], self.arg["nth"]
        self._next_arg = 0

    def argument(self, type_: str = "i64") -> Value:
        """The next argument word (`ptr`, `i64`, or `float` held in the low bits)."""
        offset = OP_ARGS + WORD * self._next_arg
        self._next_arg += 1
        return self.load(type_, self.arg["op"], offset, align=4)

    def share(self, count: Value) -> tuple[Value, Value]:
        """This thread's contiguous part [low, high) of `count` items."""
        low = (count * self.ith).udiv(self.nth)
        high = (count * (self.ith + 1)).udiv(self.nth)
        return low, high

    def take(self, count: Value, body: Callable[[Value], None]) -> None:
        """Run `body(i)` for items that this thread draws from the shared counter.

        Which thread does an item cannot matter: items write disjoint outputs.
        """
        counter = self.load("ptr", self.arg["op"], OP_COUNTER, align=8)
        again, work, done = (self.new_label(p) for p in ("draw", "work", "drawn"))
        self.branch(again)
        self.label(again)
        item = self.emit(f"atomicrmw add ptr {counter.ref}, i64 1 monotonic", "i64")
        more = item.compare("slt", count)
        self.line(f"br i1 {more.ref}, label %{work}, label %{done}")
        self.label(work)
        body(item)
        self.branch(again)
        self.label(done)


class MathOn:
    """`ir/math.py`'s builder protocol over an LLVM function, for vectors of `lanes`."""

    def __init__(self, fn: Function, lanes: int = LANES):
        self.fn = fn
        self._f32 = vec(lanes, "float") if lanes else "float"
        self._i32 = vec(lanes, "i32") if lanes else "i32"

    def f32(self, value: float) -> Value:
        return self.fn.const(self._f32, value)

    def i32(self, value: int) -> Value:
        value &= 0xFFFFFFFF
        return self.fn.const(self._i32, value - (1 << 32) if value >> 31 else value)

    def fadd(self, x: Value, y: Value) -> Value:
        return x + y

    def fsub(self, x: Value, y: Value) -> Value:
        return x - y

    def fmul(self, x: Value, y: Value) -> Value:
        return x * y

    def fgt(self, x: Value, y: Value) -> Value:
        return x.compare("ogt", y)

    def flt(self, x: Value, y: Value) -> Value:
        return x.compare("olt", y)

    def fge(self, x: Value, y: Value) -> Value:
        return x.compare("oge", y)

    def fle(self, x: Value, y: Value) -> Value:
        return x.compare("ole", y)

    def feq(self, x: Value, y: Value) -> Value:
        return x.compare("oeq", y)

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        return self.fn.select(condition, x, y)

    def iadd(self, x: Value, y: Value) -> Value:
        return x + y

    def isub(self, x: Value, y: Value) -> Value:
        return x - y

    def iand(self, x: Value, y: Value) -> Value:
        return x & y

    def ior(self, x: Value, y: Value) -> Value:
        return x | y

    def ixor(self, x: Value, y: Value) -> Value:
        return x ^ y

    def shl(self, x: Value, n: int) -> Value:
        return x << n

    def lshr(self, x: Value, n: int) -> Value:
        return x >> n

    def ashr(self, x: Value, n: int) -> Value:
        return x.ashr(n)

    def ilt(self, x: Value, y: Value) -> Value:
        return x.compare("slt", y)

    def igt(self, x: Value, y: Value) -> Value:
        return x.compare("sgt", y)

    def ieq(self, x: Value, y: Value) -> Value:
        return x.compare("eq", y)

    def bits(self, x: Value) -> Value:
        return x.cast("bitcast", self._i32)

    def unbits(self, x: Value) -> Value:
        return x.cast("bitcast", self._f32)

    def i2f(self, x: Value) -> Value:
        return x.cast("sitofp", self._f32)


def fmax(fn: Function, a: Value, b: Value) -> Value:
    """`select(a > b, a, b)`, the contract's maximum."""
    return fn.select(a.compare("ogt", b), a, b)


def widen_f16(k: CpuFunction, bits: Value) -> Value:
    """f16 values, as i16 bits, widened to f32 (exact)."""
    lanes = lanes_of(bits.type)
    if k.target.has_f16c:
        return bits.cast("bitcast", vec(lanes, "half")).cast("fpext", vec(lanes, "float"))
    return kmath.f16_bits_to_f32(MathOn(k, lanes), bits.cast("zext", vec(lanes, "i32")))


def load_f16(k: CpuFunction, pointer: Value, offset: Value | int = 0, lanes: int = LANES) -> Value:
    """f16 values widened to f32 (exact)."""
    return widen_f16(k, k.load(vec(lanes, "i16"), pointer, offset))


def to_f16(k: CpuFunction, value: Value) -> Value:
    """f32 values rounded to f16 (nearest even), as i16 bits."""
    lanes = lanes_of(value.type)
    if k.target.has_f16c:
        half = value.cast("fptrunc", vec(lanes, "half") if lanes else "half")
        return half.cast("bitcast", vec(lanes, "i16") if lanes else "i16")
    bits = kmath.f32_to_f16_bits(MathOn(k, lanes), value)
    return bits.cast("trunc", vec(lanes, "i16") if lanes else "i16")


def widen_bf16(k: CpuFunction, bits: Value) -> Value:
    """bf16 values, as i16 bits, widened to f32 (exact)."""
    lanes = lanes_of(bits.type)
    return (bits.cast("zext", vec(lanes, "i32")) << 16).cast("bitcast", vec(lanes, "float"))


def load_bf16(k: CpuFunction, pointer: Value, offset: Value | int = 0) -> Value:
    """Eight bf16 values widened to f32 (exact)."""
    return widen_bf16(k, k.load(vec(8, "i16"), pointer, offset))


def tree(values: list[Value]) -> Value:
    """Add chains pairwise in halves (docs/arithmetic.md section 2)."""
    while len(values) > 1:
        half = len(values) // 2
        values = [values[i] + values[i + half] for i in range(half)]
    return values[0]


def lane_tree(fn: Function, value: Value) -> Value:
    """Sum of a vector's lanes: the tree goes on inside the register. A scalar."""
    lanes = lanes_of(value.type)
    while lanes > 1:
        half = lanes // 2
        low = fn.shuffle(value, list(range(half)))
        high = fn.shuffle(value, list(range(half, lanes)))
        value, lanes = low + high, half
    return value.at(0)


def lane_max(fn: Function, value: Value) -> Value:
    """Largest lane, by integer or float compare. A scalar."""
    lanes = lanes_of(value.type)
    floats = scalar_of(value.type) == "float"
    while lanes > 1:
        half = lanes // 2
        low = fn.shuffle(value, list(range(half)))
        high = fn.shuffle(value, list(range(half, lanes)))
        bigger = low.compare("ogt" if floats else "sgt", high)
        value, lanes = fn.select(bigger, low, high), half
    return value.at(0)


def multiply_add16(k: CpuFunction, a: Value, b: Value) -> Value:
    """Products of pairs of i16, neighbours added: i32[8] of i16[16], or 16 of 32. Exact."""
    lanes = lanes_of(a.type)
    if k.target.dot != "generic":
        name = "llvm.x86.avx512.pmaddw.d.512" if lanes == 32 else "llvm.x86.avx2.pmadd.wd"
        return k.call(name, vec(lanes // 2, "i32"), a, b)
    wide = vec(lanes, "i32")
    products = a.cast("sext", wide) * b.cast("sext", wide)
    even = k.shuffle(products, list(range(0, lanes, 2)))
    odd = k.shuffle(products, list(range(1, lanes, 2)))
    return even + odd


class RowGroups:
    """The same place in the packed blocks of one row group, or of two side by side.

    Two groups fill the wider vectors of AVX-512: lanes 0 to 7 are the first group's rows.
    """

    def __init__(self, k: CpuFunction, *pointers: Value):
        self.k, self.pointers = k, pointers

    @property
    def lanes(self) -> int:
        """Output rows that a vector holds."""
        return LANES * len(self.pointers)

    def move(self, offset: Value | int) -> RowGroups:
        """The place `offset` bytes on in each group."""
        return RowGroups(self.k, *(self.k.gep(p, offset) for p in self.pointers))

    def load(self, type_: str, offset: Value | int = 0) -> Value:
        """A vector of each group, side by side."""
        parts = [self.k.load(type_, p, offset) for p in self.pointers]
        if len(parts) == 1:
            return parts[0]
        return self.k.shuffle(parts[0], list(range(2 * lanes_of(type_))), parts[1])

    def splat(self, scalar: str, pointer: Value, offset: Value | int = 0) -> Value:
        """A scalar from memory in the lane of every row."""
        return self.k.load_splat(scalar, self.lanes, pointer, offset)
