"""The ops that families write. The arithmetic of each is `docs/arithmetic.md`.

    inputs        tokens  weight  embed
    elementwise   scale  add  mul  silu  sigmoid  gelu_tanh  softcap
    rows          rms_norm  linear  take_outputs
    heads         split_heads  merge_heads  rope  temper  attention  attention_again
    experts       experts

Letters: `T` rows of the step, `R` rows whose outputs are wanted, `D` model width, `N`, `K`
outputs and inputs of a matrix, `H`, `Hkv` query and key heads, `Dh` head width, `V`
vocabulary, `F` feed-forward width, `E` experts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.ops.spec import (
    F32,
    FLOAT_FORMATS,
    RuleError,
    Run,
    Weight,
    activations,
    extent,
    format_of,
    op,
    same,
    tensor,
    vector,
    weight_of,
)
from kinetic.ir.rope_tables import RopeScaling, rope_table
from kinetic.ir.types import DType, TensorType, Type, WeightType, f32

# ---- inputs ------------------------------------------------------------------------------


@op("model")
def tokens() -> Type:
    """The token id of each row of the step."""
    return TensorType(DType.i32, ("T",))


@tokens.meaning
def _(run: Run) -> npt.NDArray[np.int32]:
    return run.rows.tokens


@op("model")
def weight(
    *,
    name: str,
    format: str,
    shape: tuple[int, ...],
    rows: tuple[int, int] | None = None,
    part: tuple[int, int] | None = None,
) -> Type:
    """A tensor of the file; `rows=(start, count)` takes a range of its first axis, `part` one of
    the second of three."""
    whole = WeightType(format, shape)
    if shape[-1] % format_of(whole).values:
        raise RuleError("shape", f"rows of whole {format} blocks", shape)
    if part is not None:
        if rows is not None or len(shape) != 3:
            raise RuleError("part", "three axes, without rows", shape)
        return WeightType(format, (shape[0], _range(part, "part", shape[1]), shape[2]))
    if rows is None:
        return whole
    return WeightType(format, (_range(rows, "rows", shape[0]), *shape[1:]))


def _range(found: tuple[int, int], where: str, size: int) -> int:
    """The length of a `(start, count)` that must lie within an axis."""
    start, count = found
    if start < 0 or count < 1 or start + count > size:
        raise RuleError(where, f"a range within 0..{size}", found)
    return count


@weight.meaning
def _(
    run: Run,
    *,
    name: str,
    format: str,
    shape: tuple[int, ...],
    rows: tuple[int, int] | None,
    part: tuple[int, int] | None,
) -> Weight:
    w = run.weight(name)
    same((w.format.name, w.shape), (format, shape), f"tensor {name}")
    if part is not None:
        return ar.part_of_each(w, *part)
    return w if rows is None else ar.row_range(w, *rows)


@op("model")
def embed(tokens: Type, W: Type) -> Type:
    """The dequantized row of `W` for each token."""
    same(tokens, TensorType(DType.i32, ("T",)), "tokens")
    return f32("T", weight_of(W, "W", 2).shape[1])


@embed.meaning
def _(run: Run, tokens: npt.NDArray[np.int32], W: Weight) -> F32:
    return ar.dequantized_rows(W, tokens)


# ---- elementwise -------------------------------------------------------------------------


@op("model")
def scale(x: Type, *, value: float) -> Type:
    """`x * value`."""
    return tensor(x, "x")


@scale.meaning
def _(run: Run, x: F32, *, value: float) -> F32:
    return x * np.float32(value)


@op("model")
def add(a: Type, b: Type) -> Type:
    """`a + b`."""
    same(b, tensor(a, "a"), "b")
    return a


@add.meaning
def _(run: Run, a: F32, b: F32) -> F32:
    return a + b


@op("model")
def mul(a: Type, b: Type) -> Type:
    """`a * b`."""
    same(b, tensor(a, "a"), "b")
    return a


@mul.meaning
def _(run: Run, a: F32, b: F32) -> F32:
    return a * b


@op("model")
def silu(x: Type) -> Type:
    """`x * sigmoid(x)`."""
    return tensor(x, "x")


@silu.meaning
def _(run: Run, x: F32) -> F32:
    return ar.silu(x)


@op("model")
def sigmoid(x: Type) -> Type:
    """`1 / (1 + exp(-x))`."""
    return tensor(x, "x")


@sigmoid.meaning
def _(run: Run, x: F32) -> F32:
    return ar.sigmoid(x)


@op("model")
def gelu_tanh(x: Type) -> Type:
    """GELU in its tanh form."""
    return tensor(x, "x")


@gelu_tanh.meaning
def _(run: Run, x: F32) -> F32:
    return ar.gelu_tanh(x)


@op("model")
def softcap(x: Type, *, cap: float) -> Type:
    """`cap * tanh(x / cap)`, the division as a product with `1 / cap`."""
    return tensor(x, "x")


@softcap.meaning
def _(run: Run, x: F32, *, cap: float) -> F32:
    return ar.softcap(x, cap)


# ---- rows --------------------------------------------------------------------------------


@op("model")
def rms_norm(x: Type, w: Type | None = None, *, eps: float) -> Type:
    """`x * rsqrt(mean(x * x) + eps) * w` over the last axis: of a row, or of each head, where
    `w` may have a row for each."""
    found = tensor(x, "x")
    n = extent(found, "x")
    if isinstance(w, WeightType) and len(w.shape) == 2 and len(found.shape) == 3:
        same((w.shape, w.format_name in FLOAT_FORMATS), (found.shape[1:], True), "w")
    elif w is not None:
        vector(w, "w", n)
    return found


@rms_norm.meaning
def _(run: Run, x: F32, w: Weight | None, *, eps: float) -> F32:
    return ar.rms_norm(x, None if w is None else ar.floats(w), eps)


@op("model")
def linear(x: Type, W: Type, bias: Type | None = None) -> Type:
    """`sum over k of W[n, k] x[t, k]`, then `+ bias`; the format of `W` decides the sum."""
    found = tensor(x, "x", 2)
    return product_type(found, W, bias)


@linear.meaning
def _(run: Run, x: F32, W: Weight, bias: Weight | None) -> F32:
    return ar.linear(x, W, bias)


def product_type(x: Type, W: Type, bias: Type | None) -> TensorType:
    """The rule of all products: `[T, K]` by `[N, K]` gives `[T, N]`.

    Raises: RuleError.
    """
    rows = activations(x, "x")
    n, k = weight_of(W, "W", 2).shape
    same(extent(rows, "x"), k, "last extent of x")
    if bias is not None:
        vector(bias, "bias", n)
    return f32(rows.shape[0], n)


@op("model")
def take_outputs(x: Type) -> Type:
    """The rows whose outputs are wanted, in order."""
    found = tensor(x, "x", 2)
    same(found.shape[0], "T", "first extent of x")
    return f32("R", found.shape[1])


@take_outputs.meaning
def _(run: Run, x: F32) -> F32:
    return x[run.rows.wanted]


# ---- heads -------------------------------------------------------------------------------


@op("model")
def split_heads(x: Type, *, heads: int) -> Type:
    """The row `[H * Dh]` seen as `[H, Dh]`."""
    found = tensor(x, "x", 2)
    width = extent(found, "x")
    if heads < 1 or width % heads:
        raise RuleError("heads", f"a divisor of {width}", heads)
    return f32(found.shape[0], heads, width // heads)


@split_heads.meaning
def _(run: Run, x: F32, *, heads: int) -> F32:
    return x.reshape(len(x), heads, -1)


@op("model")
def merge_heads(x: Type) -> Type:
    """The heads `[H, Dh]` seen as one row `[H * Dh]`."""
    rows, heads, width = tensor(x, "x", 3).shape
    if not (isinstance(heads, int) and isinstance(width, int)):
        raise RuleError("x", "known extents after the first", x)
    return f32(rows, heads * width)


@merge_heads.meaning
def _(run: Run, x: F32) -> F32:
    return x.reshape(len(x), -1)


@op("model")
def rope(
    x: Type,
    factors: Type | None = None,
    *,
    kind: str,
    rot: int,
    base: float,
    scaling: str | None = None,
    factor: float = 1.0,
    n_ctx_orig: int = 0,
    attn_factor: float = 1.0,
) -> Type:
    """Turns pairs of the first `rot` columns of each head by an angle of the row's position.

    `kind` is the pairing, `norm` (2i, 2i+1) or `neox` (i, i + rot/2); `scaling` is `linear`
    or `yarn` by `factor`; `factors` divide the frequencies.
    """
    found = tensor(x, "x", 3)
    if kind not in ("norm", "neox"):
        raise RuleError("kind", '"norm" or "neox"', kind)
    if scaling not in (None, "linear", "yarn"):
        raise RuleError("scaling", '"linear", "yarn" or none', scaling)
    if base <= 0 or factor <= 0:
        raise RuleError("base and factor", "numbers above 0", (base, factor))
    if scaling == "yarn" and n_ctx_orig < 1:
        raise RuleError("n_ctx_orig", "at least 1", n_ctx_orig)
    if rot < 2 or rot % 2 or rot > extent(found, "x"):
        raise RuleError("rot", f"an even number in 2..{extent(found, 'x')}", rot)
    if factors is not None:
        vector(factors, "factors", rot // 2)
    return found


@rope.meaning
def _(
    run: Run,
    x: F32,
    factors: Weight | None,
    *,
    kind: str,
    rot: int,
    base: float,
    scaling: str | None,
    factor: float,
    n_ctx_orig: int,
    attn_factor: float,
) -> F32:
    how = rope_scaling(scaling, factor, n_ctx_orig, attn_factor)
    return ar.rope(x, *rope_at(run, rot, base, how, factors), kind)


def rope_scaling(
    scaling: str | None, factor: float, n_ctx_orig: int, attn_factor: float
) -> RopeScaling:
    """What the attributes of a `rope` say, as the tables take it."""
    if scaling == "linear":
        return RopeScaling("linear", factor, attn_factor=attn_factor)
    if scaling == "yarn":
        return RopeScaling("yarn", factor, n_ctx_orig, attn_factor)
    return RopeScaling(attn_factor=attn_factor)


def rope_at(
    run: Run, rot: int, base: float, scaling: RopeScaling, factors: Weight | None
) -> tuple[F32, F32]:
    """`cos` and `sin` `[T, rot / 2]` at each row's position."""
    divisors = None if factors is None else ar.floats(factors)
    return rope_table(run.rows.positions, rot, base, scaling=scaling, freq_factors=divisors)


@op("model")
def temper(x: Type, *, scale: float, every: int) -> Type:
    """`x * (1 + scale * log(1 + n))`, `n` being how often `every` positions lie behind the row."""
    if every < 1:
        raise RuleError("every", "at least 1", every)
    return tensor(x, "x", 3)


@temper.meaning
def _(run: Run, x: F32, *, scale: float, every: int) -> F32:
    return ar.temper(x, run.rows.positions // every, scale)


@op("model", writes=True)
def attention(
    q: Type,
    k: Type,
    v: Type,
    sinks: Type | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    cache: str,
) -> Type:
    """Writes the row's `k`, `v` into `cache` and attends along the row's own path.

    With a `window` a row sees the last `window` positions, its own among them. `sinks` are
    scores of a head that have no value: they take their share and add nothing.
    """
    rows, heads, width = queries(q, sinks, window)
    kt, vt = tensor(k, "k", 3), tensor(v, "v", 3)
    same((kt.shape[0], kt.shape[2]), (rows, width), "rows and width of k")
    same(vt.shape[:2], kt.shape[:2], "rows and heads of v")
    if not isinstance(kt.shape[1], int) or heads % kt.shape[1]:
        raise RuleError("q", f"a multiple of {kt.shape[1]} heads", heads)
    return f32(rows, heads, vt.shape[2])


@attention.meaning
def _(
    run: Run,
    q: F32,
    k: F32,
    v: F32,
    sinks: Weight | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    cache: str,
) -> F32:
    run.write(cache, k, v)
    return attend_paths(run, q, sinks, scale, window, softcap, cache)


@op("model")
def attention_again(
    q: Type,
    sinks: Type | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    cache: str,
) -> Type:
    """`attention` over a `cache` that an earlier layer writes; keys and values are as wide."""
    return f32(*queries(q, sinks, window))


@attention_again.meaning
def _(
    run: Run,
    q: F32,
    sinks: Weight | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    cache: str,
) -> F32:
    return attend_paths(run, q, sinks, scale, window, softcap, cache)


def queries(q: Type, sinks: Type | None, window: int | None) -> tuple[int | str, int, int]:
    """Rows, heads and width of queries, which may have sinks and a window.

    Raises: RuleError.
    """
    rows, heads, width = tensor(q, "q", 3).shape
    if not isinstance(heads, int) or not isinstance(width, int):
        raise RuleError("q", "known extents after the first", q)
    if window is not None and window < 1:
        raise RuleError("window", "at least 1", window)
    if sinks is not None:
        vector(sinks, "sinks", heads)
    return rows, heads, width


def attend_paths(
    run: Run,
    q: F32,
    sinks: Weight | None,
    scale: float,
    window: int | None,
    softcap: float | None,
    cache: str,
) -> F32:
    """Each row along its own path in `cache`: `[T, H, Dv]`."""
    scores = None if sinks is None else ar.floats(sinks)
    out: dict[int, F32] = {}
    for sequence in np.unique(run.rows.sequences).tolist():
        mine = run.rows.sequences == sequence
        keys, values = run.read(cache, sequence)
        at = run.rows.positions[mine]
        out[sequence] = ar.attend(q[mine], at, keys, values, scale, window, softcap, scores)
    found = np.empty((*q.shape[:2], next(iter(out.values())).shape[2]), np.float32)
    for sequence, rows in out.items():
        found[run.rows.sequences == sequence] = rows
    return found


# ---- experts -----------------------------------------------------------------------------


@op("model")
def experts(
    x: Type,
    gate_inp: Type,
    gate: Type,
    up: Type,
    down: Type,
    select_bias: Type | None = None,
    router_x: Type | None = None,
    router_bias: Type | None = None,
    gate_bias: Type | None = None,
    up_bias: Type | None = None,
    down_bias: Type | None = None,
    expert_scale: Type | None = None,
    *,
    n_used: int,
    act: str = "silu",
    norm_weights: bool = True,
    router: str = "softmax",
    weight_scale: float = 1.0,
) -> Type:
    """A router over `E` experts; the sum of the `n_used` best gated feed-forwards.

    `router` makes weights of the logits, `softmax` or `sigmoid`; `select_bias` is added to
    them for the choice alone, `expert_scale` multiplies them in the end. The router reads
    `router_x` where there is one. Biases of the matrices are `[E, N]`.
    """
    rows = tensor(x, "x", 2)
    d = extent(rows, "x")
    e = weight_of(gate_inp, "gate_inp", 2).shape[0]
    f = weight_of(gate, "gate", 3).shape[1]
    same(weight_of(gate_inp, "gate_inp", 2).shape, (e, d), "gate_inp")
    same(weight_of(gate, "gate", 3).shape, (e, f, d), "gate")
    same(weight_of(up, "up", 3).shape, (e, f, d), "up")
    same(weight_of(down, "down", 3).shape, (e, d, f), "down")
    if router_x is not None:
        same(router_x, rows, "router_x")
    if router_bias is not None:
        vector(router_bias, "router_bias", e)
    for bias, n in ((gate_bias, f), (up_bias, f), (down_bias, d)):
        expert_bias(bias, e, n)
    check_gate(act)
    check_router(router, n_used, e, select_bias, expert_scale)
    return rows


@experts.meaning
def _(
    run: Run,
    x: F32,
    gate_inp: Weight,
    gate: Weight,
    up: Weight,
    down: Weight,
    select_bias: Weight | None,
    router_x: F32 | None,
    router_bias: Weight | None,
    gate_bias: Weight | None,
    up_bias: Weight | None,
    down_bias: Weight | None,
    expert_scale: Weight | None,
    *,
    n_used: int,
    act: str,
    norm_weights: bool,
    router: str,
    weight_scale: float,
) -> F32:
    how = ar.Router(n_used, norm_weights, router, weight_scale)
    weights = ar.ExpertWeights(
        gate_inp,
        gate,
        up,
        down,
        select_bias,
        router_bias,
        gate_bias,
        up_bias,
        down_bias,
        expert_scale,
    )
    return ar.experts(x, weights, act, how, router_x)


def expert_bias(bias: Type | None, n_experts: int, n: int) -> None:
    """Check a bias of experts' matrices: plain floats `[E, N]`, or none.

    Raises: RuleError.
    """
    if bias is None:
        return
    found = weight_of(bias, "bias", 2)
    if found.format_name not in FLOAT_FORMATS or found.shape != (n_experts, n):
        raise RuleError("bias", f"f32[{n_experts}, {n}]", bias)


def check_router(
    router: str,
    n_used: int,
    n_experts: int,
    select_bias: Type | None,
    expert_scale: Type | None = None,
) -> None:
    """Check what `experts` and `route` say about the choice.

    Raises: RuleError.
    """
    if router not in ar.ROUTERS:
        raise RuleError("router", f"one of {tuple(ar.ROUTERS)}", router)
    if not 1 <= n_used <= n_experts:
        raise RuleError("n_used", f"1..{n_experts}", n_used)
    if select_bias is not None:
        vector(select_bias, "select_bias", n_experts)
    if expert_scale is not None:
        vector(expert_scale, "expert_scale", n_experts)


def check_gate(act: str) -> None:
    """Check the name of a gate.

    Raises: RuleError.
    """
    if act not in ar.GATES:
        raise RuleError("act", f"one of {ar.GATES}", act)
