"""The numpy builder of `math.py`: binary32 and int32 arrays, every operation IEEE exact.

Array add, subtract and multiply on float32 are correctly rounded and never fused, which
is all the contract needs; numpy's own exp, log and friends are never used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


class NumpyBuilder:
    """Arrays in, arrays out, with numpy's broadcasting and without its warnings."""

    def f32(self, value: float) -> Array:
        return np.asarray(value, np.float32)

    def i32(self, value: int) -> Array:
        return np.asarray(value & 0xFFFFFFFF, np.uint32).view(np.int32)

    def fadd(self, x: Array, y: Array) -> Array:
        return _quiet(np.add, x, y)

    def fsub(self, x: Array, y: Array) -> Array:
        return _quiet(np.subtract, x, y)

    def fmul(self, x: Array, y: Array) -> Array:
        return _quiet(np.multiply, x, y)

    def fgt(self, x: Array, y: Array) -> Array:
        return _quiet(np.greater, x, y)

    def flt(self, x: Array, y: Array) -> Array:
        return _quiet(np.less, x, y)

    def fge(self, x: Array, y: Array) -> Array:
        return _quiet(np.greater_equal, x, y)

    def fle(self, x: Array, y: Array) -> Array:
        return _quiet(np.less_equal, x, y)

    def feq(self, x: Array, y: Array) -> Array:
        return _quiet(np.equal, x, y)

    def select(self, c: Array, x: Array, y: Array) -> Array:
        return np.where(c, x, y)

    def iadd(self, x: Array, y: Array) -> Array:
        return _quiet(np.add, x, y)

    def isub(self, x: Array, y: Array) -> Array:
        return _quiet(np.subtract, x, y)

    def iand(self, x: Array, y: Array) -> Array:
        return np.bitwise_and(x, y)

    def ior(self, x: Array, y: Array) -> Array:
        return np.bitwise_or(x, y)

    def ixor(self, x: Array, y: Array) -> Array:
        return np.bitwise_xor(x, y)

    def shl(self, x: Array, n: int) -> Array:
        return np.left_shift(x, np.int32(n))

    def lshr(self, x: Array, n: int) -> Array:
        words = np.asarray(x).view(np.uint32)
        return np.asarray(words >> np.uint32(n)).view(np.int32)

    def ashr(self, x: Array, n: int) -> Array:
        return np.right_shift(x, np.int32(n))

    def ilt(self, x: Array, y: Array) -> Array:
        return np.asarray(np.less(x, y))

    def igt(self, x: Array, y: Array) -> Array:
        return np.asarray(np.greater(x, y))

    def ieq(self, x: Array, y: Array) -> Array:
        return np.asarray(np.equal(x, y))

    def bits(self, x: Array) -> Array:
        return np.asarray(x).view(np.int32)

    def unbits(self, i: Array) -> Array:
        return np.asarray(i).view(np.float32)

    def i2f(self, i: Array) -> Array:
        return np.asarray(i).astype(np.float32)


def _quiet(ufunc: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """Infinities and NaNs are results here, not accidents to warn about."""
    with np.errstate(all="ignore"):
        return ufunc(x, y)


NUMPY = NumpyBuilder()
"""The one instance; it holds no state."""
