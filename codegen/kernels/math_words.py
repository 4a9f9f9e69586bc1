"""`kinetic.ir.math` over a kernel builder: the library's words for our values."""

from __future__ import annotations

from kinetic.codegen.kernels.builder import F32, I32, Builder, Value


class MathWords:
    """Implements `MathBuilder` of `kinetic.ir.math`; its integers are `I32`."""

    def __init__(self, k: Builder) -> None:
        self._k = k

    def f32(self, value: float) -> Value:
        return self._k.const(F32, value)

    def i32(self, value: int) -> Value:
        return self._k.const(I32, value)

    def fadd(self, x: Value, y: Value) -> Value:
        return x + y

    def fsub(self, x: Value, y: Value) -> Value:
        return x - y

    def fmul(self, x: Value, y: Value) -> Value:
        return x * y

    def fgt(self, x: Value, y: Value) -> Value:
        return x > y

    def flt(self, x: Value, y: Value) -> Value:
        return x < y

    def fge(self, x: Value, y: Value) -> Value:
        return x >= y

    def fle(self, x: Value, y: Value) -> Value:
        return x <= y

    def feq(self, x: Value, y: Value) -> Value:
        return x.equals(y)

    def select(self, c: Value, x: Value, y: Value) -> Value:
        return self._k.select(c, x, y)

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
        return self._k.binary("lshr", x, self.i32(n))

    def ashr(self, x: Value, n: int) -> Value:
        return x >> n

    def ilt(self, x: Value, y: Value) -> Value:
        return x < y

    def igt(self, x: Value, y: Value) -> Value:
        return x > y

    def ieq(self, x: Value, y: Value) -> Value:
        return x.equals(y)

    def bits(self, x: Value) -> Value:
        return x.as_type(I32)

    def unbits(self, i: Value) -> Value:
        return i.as_type(F32)

    def i2f(self, i: Value) -> Value:
        return i.to_float()
