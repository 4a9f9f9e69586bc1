"""The ops of recurrent blocks. The arithmetic of each is `docs/arithmetic.md`, section 11.

    blocks    short_conv  delta_rule  ssm_scan
    around    softplus  decay  l2_norm  every_head  gate_rows

A block keeps a *state* of its sequence, which each row replaces: `cache` names it. Letters
besides those of `model.py`: `C` channels and `K` taps of a convolution, `S` rows and `P`
columns of a head's state, `G` groups of heads that share their inputs.
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
from kinetic.ir.types import TensorType, Type, WeightType, f32

MOST_TAPS = 8
"""Taps of a short convolution; kernels keep them all in registers."""

StateShape = tuple[int, int, int]
"""Heads, rows and columns."""


def state_shape(op_name: str, *inputs: Type) -> StateShape | None:
    """The state that a recurrent op keeps, from its inputs' types; None for other ops."""
    found = [x.shape for x in inputs if isinstance(x, TensorType | WeightType)]
    if op_name == "short_conv":
        channels, taps = found[1]
        return _known(1, taps - 1 if isinstance(taps, int) else taps, channels)
    if op_name == "delta_rule":
        return _known(found[2][1], found[1][2], found[2][2])
    if op_name == "ssm_scan":
        return _known(found[0][1], found[3][2], found[0][2])
    return None


def _known(*extents: int | str) -> StateShape:
    heads, rows, columns = extents
    if not (isinstance(heads, int) and isinstance(rows, int) and isinstance(columns, int)):
        raise RuleError("state", "known extents", extents)
    return heads, rows, columns


def _floats(w: Type | None, where: str, count: int) -> None:
    """Check that `w` has `count` plain floats, as a vector or a column."""
    if (
        not isinstance(w, WeightType)
        or w.format_name not in FLOAT_FORMATS
        or w.shape not in ((count,), (count, 1))
    ):
        raise RuleError(where, f"f32[{count}]", w)


def _heads(x: Type, where: str) -> tuple[int | str, int, int]:
    """Rows, heads and width of a value of heads."""
    rows, heads, width = tensor(x, where, 3).shape
    if not isinstance(heads, int) or not isinstance(width, int):
        raise RuleError(where, "known extents after the first", x)
    return rows, heads, width


# ---- blocks ------------------------------------------------------------------------------


@op("model", writes=True)
def short_conv(
    x: Type, w: Type, bias: Type | None = None, *, act: str | None = None, cache: str
) -> Type:
    """`sum over j of w[c, j] x[t - (K - 1) + j, c]`, along the row's own path, then `+ bias`
    and `act`; the state is the last `K - 1` rows."""
    found = tensor(x, "x", 2)
    channels, taps = weight_of(w, "w", 2).shape
    same(extent(found, "x"), channels, "channels of x")
    if not isinstance(w, WeightType) or w.format_name not in FLOAT_FORMATS:
        raise RuleError("w", "plain floats", w)
    if not 2 <= taps <= MOST_TAPS:
        raise RuleError("w", f"2..{MOST_TAPS} taps", taps)
    if bias is not None:
        vector(bias, "bias", channels)
    if act not in (None, "silu"):
        raise RuleError("act", '"silu" or none', act)
    return found


@short_conv.meaning
def _(run: Run, x: F32, w: Weight, bias: Weight | None, *, act: str | None, cache: str) -> F32:
    taps = ar.floats(w).T  # [K, C]
    out = np.empty_like(x)

    def row(state: F32, i: int) -> F32:
        seen = np.concatenate([state[0], x[i : i + 1]])  # [K, C]
        y = seen[0] * taps[0]
        for j in range(1, len(taps)):
            y = y + seen[j] * taps[j]
        if bias is not None:
            y = y + ar.floats(bias)
        out[i] = y
        return seen[None, 1:]

    with np.errstate(all="ignore"):
        run.scan(cache, (1, len(taps) - 1, x.shape[1]), row)
    return out if act is None else ar.ACTIVATIONS[act](out)


@op("model", writes=True)
def delta_rule(
    q: Type, k: Type, v: Type, beta: Type, decay: Type, *, scale: float, cache: str
) -> Type:
    """The gated delta rule: a head's state `M [S, P]` forgets by `decay`, then learns to answer
    `k` with `v`, by a step of `beta`; the result is `M^T q * scale`.

    Value head `h` has the key head `h % Hk`.
    """
    rows, key_heads, width = _heads(q, "q")
    same(k, q, "k")
    v_rows, heads, columns = _heads(v, "v")
    same(v_rows, rows, "rows of v")
    if heads % key_heads:
        raise RuleError("v", f"a multiple of {key_heads} heads", heads)
    for x, where in ((beta, "beta"), (decay, "decay")):
        same(tensor(x, where, 2), f32(rows, heads), where)
    if width % 4:
        raise RuleError("q", "a multiple of 4 channels", width)
    return f32(rows, heads, columns)


@delta_rule.meaning
def _(run: Run, q: F32, k: F32, v: F32, beta: F32, decay: F32, *, scale: float, cache: str) -> F32:
    heads, width = v.shape[1], q.shape[2]
    of = np.arange(heads) % q.shape[1]
    out = np.empty_like(v)

    def row(state: F32, i: int) -> F32:
        keys, queries = k[i, of][:, :, None], q[i, of][:, :, None]  # [H, S, 1]
        state = state * decay[i][:, None, None]
        known = ar.chain_sum(np.moveaxis(state * keys, 1, 2), 4)  # [H, P]
        step = (v[i] - known) * beta[i][:, None]
        state = state + keys * step[:, None]
        out[i] = ar.chain_sum(np.moveaxis(state * queries, 1, 2), 4) * np.float32(scale)
        return state

    with np.errstate(all="ignore"):
        run.scan(cache, (heads, width, v.shape[2]), row)
    return out


@op("model", writes=True)
def ssm_scan(x: Type, dt: Type, decay: Type, B: Type, C: Type, d: Type, *, cache: str) -> Type:
    """Mamba-2: a head's state `M [S, P]` becomes `M * decay + B (x * dt)^T`; the result is
    `M^T C + d * x`. Heads lie in `G` groups, each with its own `B` and `C`."""
    rows, heads, _ = _heads(x, "x")
    b_rows, groups, width = _heads(B, "B")
    same(b_rows, rows, "rows of B")
    same(C, B, "C")
    if heads % groups:
        raise RuleError("x", f"a multiple of {groups} heads", heads)
    for y, where in ((dt, "dt"), (decay, "decay")):
        same(tensor(y, where, 2), f32(rows, heads), where)
    _floats(d, "d", heads)
    if width % 4:
        raise RuleError("B", "a multiple of 4 channels", width)
    return x


@ssm_scan.meaning
def _(run: Run, x: F32, dt: F32, decay: F32, B: F32, C: F32, d: Weight, *, cache: str) -> F32:
    heads = x.shape[1]
    of = np.arange(heads) // (heads // B.shape[1])
    skip = ar.floats(d).reshape(-1)[:, None]
    out = np.empty_like(x)

    def row(state: F32, i: int) -> F32:
        into = x[i] * dt[i][:, None]  # [H, P]
        state = state * decay[i][:, None, None] + B[i, of][:, :, None] * into[:, None]
        y = ar.chain_sum(np.moveaxis(state * C[i, of][:, :, None], 1, 2), 4)
        out[i] = y + x[i] * skip
        return state

    with np.errstate(all="ignore"):
        run.scan(cache, (heads, B.shape[2], x.shape[2]), row)
    return out


# ---- around them -------------------------------------------------------------------------


@op("model")
def softplus(x: Type, bias: Type) -> Type:
    """`log(1 + exp(x + bias))`."""
    found = tensor(x, "x", 2)
    vector(bias, "bias", extent(found, "x"))
    return found


@softplus.meaning
def _(run: Run, x: F32, bias: Weight) -> F32:
    with np.errstate(all="ignore"):
        return np.asarray(ir_math.softplus(NUMPY, x + ar.floats(bias)), np.float32)


@op("model")
def decay(x: Type, a: Type) -> Type:
    """`exp(x * a)`."""
    found = tensor(x, "x", 2)
    _floats(a, "a", extent(found, "x"))
    return found


@decay.meaning
def _(run: Run, x: F32, a: Weight) -> F32:
    with np.errstate(all="ignore"):
        return ar.exp(x * ar.floats(a).reshape(-1))


@op("model")
def l2_norm(x: Type, *, eps: float) -> Type:
    """`x * rsqrt(sum(x * x) + eps)` over the last axis."""
    extent(tensor(x, "x"), "x")
    return x


@l2_norm.meaning
def _(run: Run, x: F32, *, eps: float) -> F32:
    with np.errstate(all="ignore"):
        return x * ar.rsqrt(ar.chain_sum(x * x, 32) + np.float32(eps))[..., None]


@op("model")
def every_head(x: Type, *, first: int, step: int) -> Type:
    """The heads `first`, `first + step`, ... of a value."""
    rows, heads, width = _heads(x, "x")
    if not (1 <= step <= heads and 0 <= first < step):
        raise RuleError("first and step", f"a start below a step of at most {heads}", (first, step))
    return f32(rows, len(range(first, heads, step)), width)


@every_head.meaning
def _(run: Run, x: F32, *, first: int, step: int) -> F32:
    return np.ascontiguousarray(x[:, first::step])


@op("model")
def gate_rows(y: Type, x: Type, w: Type) -> Type:
    """`y * sigmoid(sum over k of w[k] x[t, k])`: a gate for each row."""
    rows = tensor(x, "x", 2)
    vector(w, "w", extent(rows, "x"))
    same(tensor(y, "y", 2).shape[0], rows.shape[0], "rows of y")
    return y


@gate_rows.meaning
def _(run: Run, y: F32, x: F32, w: Weight) -> F32:
    with np.errstate(all="ignore"):
        return y * ar.sigmoid(ar.chain_sum(x * ar.floats(w), 32))[:, None]
