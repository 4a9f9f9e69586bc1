"""The ops of encoders and of pooling. The arithmetic of each is `docs/arithmetic.md`, section 12.

    inputs        embed_positions
    rows          layer_norm  add_row  gelu_erf  tanh
    attention     text_attention  (lowered: attend_text)
    pooling       pool

A *text* is all rows of one sequence, in one step and in order. Letters are those of `model.py`.
"""

from __future__ import annotations

import numpy as np

from kinetic.ir import math as ir_math
from kinetic.ir.math_numpy import NUMPY
from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.ops.spec import (
    F32,
    FLOAT_FORMATS,
    RuleError,
    Run,
    Weight,
    extent,
    op,
    same,
    tensor,
    vector,
    weight_of,
)
from kinetic.ir.types import Type, WeightType, f32

POOLS = ("mean", "first")
"""What `pool` knows; the last row of a text is `take_outputs`."""

# ---- inputs ------------------------------------------------------------------------------


@op("model")
def embed_positions(W: Type) -> Type:
    """The dequantized row of `W` for the position of each row."""
    return f32("T", weight_of(W, "W", 2).shape[1])


@embed_positions.meaning
def _(run: Run, W: Weight) -> F32:
    return ar.dequantized_rows(W, run.rows.positions)


# ---- rows --------------------------------------------------------------------------------


@op("model")
def layer_norm(x: Type, w: Type, bias: Type | None = None, *, eps: float) -> Type:
    """`(x - mean) * rsqrt(mean((x - mean)^2) + eps) * w + bias` over the last axis."""
    found = tensor(x, "x", 2)
    vector(w, "w", extent(found, "x"))
    if bias is not None:
        vector(bias, "bias", extent(found, "x"))
    return found


@layer_norm.meaning
def _(run: Run, x: F32, w: Weight, bias: Weight | None, *, eps: float) -> F32:
    share = np.float32(1 / x.shape[-1])
    with np.errstate(all="ignore"):
        d = x - (ar.chain_sum(x, 32) * share)[:, None]
        spread = ar.chain_sum(d * d, 32) * share
        y = d * ar.rsqrt(spread + np.float32(eps))[:, None] * ar.floats(w)
        return y if bias is None else y + ar.floats(bias)


@op("model")
def add_row(x: Type, w: Type) -> Type:
    """`x + w`: the one row `w` is added to each."""
    found = tensor(x, "x", 2)
    columns = extent(found, "x")
    if (
        not isinstance(w, WeightType)
        or w.format_name not in FLOAT_FORMATS
        or w.shape != (1, columns)
    ):
        raise RuleError("w", f"f32[1, {columns}]", w)
    return found


@add_row.meaning
def _(run: Run, x: F32, w: Weight) -> F32:
    return x + ar.floats(w)


@op("model")
def gelu_erf(x: Type) -> Type:
    """GELU by its definition, with the error function."""
    return tensor(x, "x")


@gelu_erf.meaning
def _(run: Run, x: F32) -> F32:
    with np.errstate(all="ignore"):
        return np.asarray(ir_math.gelu_erf(NUMPY, x), np.float32)


@op("model")
def tanh(x: Type) -> Type:
    """The hyperbolic tangent."""
    return tensor(x, "x")


@tanh.meaning
def _(run: Run, x: F32) -> F32:
    with np.errstate(all="ignore"):
        return np.asarray(ir_math.tanh(NUMPY, x), np.float32)


# ---- attention ---------------------------------------------------------------------------


@op("model", writes=True)
def text_attention(
    q: Type, k: Type, v: Type, *, scale: float, window: int | None = None, cache: str
) -> Type:
    """Writes the rows' `k`, `v` into `cache` and attends over all rows of the row's own text.

    With a `window` a row sees those at most `window / 2` positions before or after its own.
    """
    rows, heads, width = tensor(q, "q", 3).shape
    kt, vt = tensor(k, "k", 3), tensor(v, "v", 3)
    same((kt.shape[0], kt.shape[2]), (rows, width), "rows and width of k")
    same(vt.shape, kt.shape, "v")
    if not isinstance(heads, int) or not isinstance(kt.shape[1], int) or heads % kt.shape[1]:
        raise RuleError("q", f"a multiple of {kt.shape[1]} heads", heads)
    _check_window(window)
    return f32(rows, heads, width)


@text_attention.meaning
def _(run: Run, q: F32, k: F32, v: F32, *, scale: float, window: int | None, cache: str) -> F32:
    run.write(cache, k, v)
    return _attend_texts(run, q, scale, window, cache)


@op("lowered")
def attend_text(q: Type, *, scale: float, window: int | None = None, cache: str) -> Type:
    """Attends over all rows of the row's own text in `cache`, which `rope_write` has written."""
    _check_window(window)
    return tensor(q, "q", 3)


@attend_text.meaning
def _(run: Run, q: F32, *, scale: float, window: int | None, cache: str) -> F32:
    return _attend_texts(run, q, scale, window, cache)


def _check_window(window: int | None) -> None:
    if window is not None and window < 2:
        raise RuleError("window", "at least 2", window)


def _attend_texts(run: Run, q: F32, scale: float, window: int | None, cache: str) -> F32:
    """A row at `p` is, to the contract's attention, a row that sees the positions from `p - w/2`
    to the end of its text or to `p + w/2`."""
    out = np.empty_like(q)
    for sequence in np.unique(run.rows.sequences).tolist():
        mine = run.rows.sequences == sequence
        keys, values = run.read(cache, sequence)
        at = run.rows.positions[mine]
        last = np.full_like(at, at.max())
        if window is None:
            out[mine] = ar.attend(q[mine], last, keys, values, scale)
            continue
        half = window // 2
        last = np.minimum(last, at + half)
        for i, row in enumerate(np.flatnonzero(mine).tolist()):
            # Seen back from the last position that it sees, a row's window has its own width.
            back = int(last[i]) - int(at[i]) + half + 1
            out[row] = ar.attend(q[row : row + 1], last[i : i + 1], keys, values, scale, back)[0]
    return out


# ---- pooling -----------------------------------------------------------------------------


@op("model")
def pool(x: Type, *, kind: str) -> Type:
    """The rows of each text as one: their `mean`, or the `first`. The last row of a text is the
    one whose outputs are wanted."""
    found = tensor(x, "x", 2)
    same(found.shape[0], "T", "first extent of x")
    if kind not in POOLS:
        raise RuleError("kind", f"one of {POOLS}", kind)
    return f32("R", found.shape[1])


@pool.meaning
def _(run: Run, x: F32, *, kind: str) -> F32:
    rows, out = run.rows, []
    with np.errstate(all="ignore"):
        for last in np.flatnonzero(rows.wanted).tolist():
            mine = np.flatnonzero(rows.sequences == rows.sequences[last])
            mine = mine[np.argsort(rows.positions[mine])][: int(rows.positions[last]) + 1]
            if kind == "first":
                out.append(x[mine[0]])
                continue
            total = np.zeros(x.shape[1], np.float32)
            for row in mine.tolist():
                total = total + x[row]
            out.append(total * ar.recip(np.array([len(mine)], np.float32)))
    return np.array(out, np.float32).reshape(-1, x.shape[1])
