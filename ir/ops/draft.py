"""The ops of blocks that predict further tokens: they read what the model made of a row.

hidden  concat
"""

from __future__ import annotations

import numpy as np

from kinetic.errors import InternalError
from kinetic.ir.ops.spec import F32, RuleError, Run, extent, op, same, tensor
from kinetic.ir.types import Type, f32


@op("model")
def hidden(*, width: int) -> Type:
    """The vector that comes with each row of the step, besides its token."""
    if width < 1:
        raise RuleError("width", "at least 1", width)
    return f32("T", width)


@hidden.meaning
def _(run: Run, *, width: int) -> F32:
    found = run.rows.hidden
    if found is None or found.shape != (len(run.rows.tokens), width):
        raise InternalError(f"the rows of this step come without vectors of {width} values")
    return found


@op("model")
def concat(a: Type, b: Type) -> Type:
    """The row of `a`, then that of `b`."""
    first, second = tensor(a, "a", 2), tensor(b, "b", 2)
    same(second.shape[0], first.shape[0], "rows of b")
    return f32(first.shape[0], extent(first, "a") + extent(second, "b"))


@concat.meaning
def _(run: Run, a: F32, b: F32) -> F32:
    return np.concatenate([a, b], axis=1)
