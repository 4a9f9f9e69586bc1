"""The vocabulary of encoders: values eight at a time, along a group or across eight groups.

A kernel walks *tiles* of 256 values: one block of a K format, or eight blocks of 32. Searches
read the tile *across*: vector `j` holds value `j` of eight groups. Packing reads it *along*:
eight neighbouring values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import kinetic.ir.math as kmath
from kinetic.codegen.kernels.cpu.simd import F32, I32, LANES, MathOn
from kinetic.codegen.targets.llvm_ir import Function, Value, lanes_of, vec

TILE = 256
"""Values of a tile."""
MAGIC = 12582912.0
"""1.5 * 2^23: adding it rounds to an integer, which is then in the low bits."""
TINY = 1e-15
"""Below this, a group counts as all zeros."""

Reader = Callable[[int], Value]
"""`across(j)`: value `j` of eight groups."""

ARGUMENTS = [
    ("ptr", "x"),
    ("ptr", "out"),
    ("i64", "tiles"),
    ("ptr", "importance"),
    ("float", "row_square"),
]


class Encoder(Function):
    """An encoder under construction: `void encode(x, out, tiles, importance, row_square)`.

    With `weighted`, `importance` holds a float for each value of `x`, and `row_square` is the
    mean square of the row.
    """

    def __init__(self, name: str, tile_bytes: int, *, weighted: bool) -> None:
        super().__init__(name, ARGUMENTS)
        self.tile_bytes, self.weighted = tile_bytes, weighted
        self.x = self.out = self.importance = self.arg["x"]

    @contextmanager
    def tiles(self) -> Iterator[None]:
        """The loop over tiles; inside, `x`, `out` and `importance` point at the tile's own."""
        with self.loop(0, self.arg["tiles"]) as tile:
            self.x = self.gep(self.arg["x"], tile.index * (4 * TILE))
            self.out = self.gep(self.arg["out"], tile.index * self.tile_bytes)
            if self.weighted:
                self.importance = self.gep(self.arg["importance"], tile.index * (4 * TILE))
            yield
        self.ret()

    # -- arithmetic -------------------------------------------------------------------
    def div(self, a: Value | float, b: Value | float) -> Value:
        """IEEE division."""
        type_ = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else "float"
        return self.binary("fdiv", self.coerce(a, type_), self.coerce(b, type_))

    def sqrt(self, a: Value) -> Value:
        """IEEE square root."""
        suffix = f"v{LANES}f32" if lanes_of(a.type) else "f32"
        return self.call(f"llvm.sqrt.{suffix}", a.type, a)

    def abs(self, a: Value) -> Value:
        """The sign bit cleared."""
        suffix = f"v{LANES}f32" if lanes_of(a.type) else "f32"
        return self.call(f"llvm.fabs.{suffix}", a.type, a)

    def negative(self, a: Value) -> Value:
        """The sign bit turned over."""
        return self.emit(f"fneg {a.type} {a.ref}", a.type)

    def either(self, condition: Value, a: Value | float, b: Value | float) -> Value:
        """`a` where the condition holds, else `b`; one of them may be a number."""
        type_ = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else "float"
        return self.select(condition, self.coerce(a, type_), self.coerce(b, type_))

    def inverse(self, d: Value) -> Value:
        """1/d, and 0 for 0."""
        return self.either(d.compare("oeq", 0.0), 0.0, self.div(1.0, d))

    def to_float(self, a: Value) -> Value:
        """Signed integers as floats."""
        return a.cast("sitofp", F32 if lanes_of(a.type) else "float")

    def truncated(self, a: Value) -> Value:
        """Floats as integers, towards zero."""
        return a.cast("fptosi", I32 if lanes_of(a.type) else "i32")

    def nearest(self, a: Value) -> Value:
        """The nearest integer, ties to even, for abs a < 2^22 (beyond, what ggml computes)."""
        bits = (a + MAGIC).cast("bitcast", I32 if lanes_of(a.type) else "i32")
        return (bits & 0x007FFFFF) - 0x00400000

    def clamp(self, a: Value, low: int, high: int) -> Value:
        """Integers held within bounds."""
        a = self.select(a.compare("slt", high), a, self.coerce(high, a.type))
        return self.select(a.compare("sgt", low), a, self.coerce(low, a.type))

    def level(self, a: Value, low: int, high: int) -> Value:
        """The nearest integer within bounds."""
        return self.clamp(self.nearest(a), low, high)

    def f16_bits(self, a: Value) -> Value:
        """f32 as the bits of the nearest f16, in an i32."""
        return kmath.f32_to_f16_bits(MathOn(self, lanes_of(a.type)), a)

    def from_f16_bits(self, bits: Value) -> Value:
        """Bits of an f16, in an i32, as f32."""
        return kmath.f16_bits_to_f32(MathOn(self, lanes_of(bits.type)), bits)

    # -- reading ----------------------------------------------------------------------
    def along(self, value: int) -> Value:
        """Eight neighbouring values of the tile, from number `value` on."""
        return self.load(F32, self.x, 4 * value)

    def across(self, pointer: Value, group: int) -> list[Reader]:
        """The tile at `pointer` as vectors of eight groups; a reader for each eight groups."""
        buffer = self.alloca(F32, TILE // LANES)
        readers: list[Reader] = []
        for half in range(TILE // group // LANES):
            for chunk in range(0, group, LANES):
                starts = [(half * LANES + g) * group + chunk for g in range(LANES)]
                rows = [self.load(F32, pointer, 4 * start) for start in starts]
                for k, column in enumerate(transposed(self, rows)):
                    self.store(column, buffer, 32 * (half * group + chunk + k), align=32)
            readers.append(self.reader(buffer, half * group))
        return readers

    def reader(self, buffer: Value, first: int = 0) -> Reader:
        """Vectors of a buffer on the stack, from number `first` on."""
        return lambda j: self.load(F32, buffer, 32 * (first + j), align=32)

    def kept(self, vectors: Sequence[Value]) -> Reader:
        """Vectors put on the stack, so that registers are free for what reads them."""
        buffer = self.alloca(F32, len(vectors))
        for j, vector in enumerate(vectors):
            self.store(vector, buffer, 32 * j, align=32)
        return self.reader(buffer)

    def scalars(self, vectors: Sequence[Value]) -> list[Value]:
        """The lanes of vectors, one after the other, as scalars."""
        return [vector.at(lane) for vector in vectors for lane in range(LANES)]

    def vectors(self, scalars: Sequence[Value]) -> list[Value]:
        """Scalars as the lanes of vectors, through the stack."""
        kind = I32 if scalars[0].type == "i32" else F32
        buffer = self.alloca(kind, len(scalars) // LANES)
        for i, scalar in enumerate(scalars):
            self.store(scalar, buffer, 4 * i)
        return [self.load(kind, buffer, 32 * k) for k in range(len(scalars) // LANES)]

    # -- writing ----------------------------------------------------------------------
    def put_bytes(self, codes: Value, offset: int) -> None:
        """Eight integers as eight bytes of the tile's output."""
        self.store(codes.cast("trunc", vec(LANES, "i8")), self.out, offset)

    def put_byte(self, code: Value, offset: int) -> None:
        """An integer as a byte."""
        self.store(code.cast("trunc", "i8"), self.out, offset)

    def put_half(self, bits: Value, offset: int) -> None:
        """The low sixteen bits of an integer."""
        self.store(bits.cast("trunc", "i16"), self.out, offset)


def transposed(fn: Function, rows: Sequence[Value]) -> list[Value]:
    """Eight vectors of eight lanes, rows and columns exchanged."""
    low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    first, second = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    quarters: list[list[Value]] = []
    for i in (0, 4):
        ends = []
        for mask in (low, high):
            a = fn.shuffle(rows[i], mask, rows[i + 1])
            b = fn.shuffle(rows[i + 2], mask, rows[i + 3])
            ends += [fn.shuffle(a, first, b), fn.shuffle(a, second, b)]
        quarters.append(ends)
    columns = []
    for mask in ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]):
        columns += [fn.shuffle(quarters[0][k], mask, quarters[1][k]) for k in range(4)]
    return columns


def largest(e: Encoder, values: Sequence[Value]) -> tuple[Value, Value]:
    """The first value with the greatest magnitude, and its magnitude; 0 and 0 for none."""
    value = magnitude = e.const(values[0].type, 0.0)
    for candidate in values:
        size = e.abs(candidate)
        bigger = size.compare("ogt", magnitude)
        magnitude = e.select(bigger, size, magnitude)
        value = e.select(bigger, candidate, value)
    return value, magnitude
