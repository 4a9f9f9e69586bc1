"""The ops that passes put in place of model ops: the same words, in fewer walks over memory.

    activations   quantize  norm_quantize
    products      matmul  glu_matmul
    gates         glu  glu_quantize
    attention     rope_write  attend
    experts       route  expert_rows  expert_matmul  expert_glu  expert_sum

Each meaning is the composition of the model ops that it replaces, so a pass is checked by
`==` on the reference.
"""

from __future__ import annotations

import numpy as np

from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.ops.model import (
    attend_paths,
    check_gate,
    check_router,
    expert_bias,
    product_type,
    rope_at,
    rope_scaling,
)
from kinetic.ir.ops.spec import (
    F32,
    Quantized,
    Routing,
    RuleError,
    Run,
    Weight,
    activations,
    extent,
    format_of,
    op,
    routing_of,
    same,
    tensor,
    vector,
    weight_of,
)
from kinetic.ir.quant.base import FloatFormat
from kinetic.ir.types import DType, QuantType, RoutingType, TensorType, Type, f32

BLOCKS = (32, 256)
"""Values that share one activation scale: those of the weight format's block."""


def quantized_type(x: TensorType, block: int) -> QuantType:
    """The type of these rows in blocks of that size.

    Raises: RuleError.
    """
    if block not in BLOCKS or extent(x, "x") % block:
        raise RuleError("block", f"a divisor of {extent(x, 'x')} in {BLOCKS}", block)
    return QuantType(block, x.shape)


def check_activations_of(x: Type, W: Type, rank: int = 2) -> None:
    """Block formats take rows quantized in their own block, float formats plain rows.

    Raises: RuleError.
    """
    fmt = format_of(weight_of(W, "W", rank))
    block = None if isinstance(fmt, FloatFormat) else fmt.block
    if block != (x.block if isinstance(x, QuantType) else None):
        rows = f"rows quantized in blocks of {block}" if block else "f32 rows"
        raise RuleError("x", f"{rows} for {fmt.name}", x)


# ---- activations -------------------------------------------------------------------------


@op("lowered")
def quantize(x: Type, *, block: int) -> Type:
    """Rows as int8 with one scale for each `block` values."""
    return quantized_type(tensor(x, "x", 2), block)


@quantize.meaning
def _(run: Run, x: F32, *, block: int) -> Quantized:
    return ar.quantize(x, block)


@op("lowered")
def norm_quantize(x: Type, w: Type | None = None, *, eps: float, block: int) -> Type:
    """`quantize(rms_norm(x, w))`."""
    found = tensor(x, "x", 2)
    if w is not None:
        vector(w, "w", extent(found, "x"))
    return quantized_type(found, block)


@norm_quantize.meaning
def _(run: Run, x: F32, w: Weight | None, *, eps: float, block: int) -> Quantized:
    return ar.quantize(ar.rms_norm(x, None if w is None else ar.floats(w), eps), block)


# ---- products ----------------------------------------------------------------------------


@op("lowered")
def matmul(x: Type, W: Type, bias: Type | None = None, residual: Type | None = None) -> Type:
    """`linear` over rows in the form that `W` takes, then `+ residual`."""
    found = product_type(x, W, bias)
    check_activations_of(x, W)
    if residual is not None:
        same(residual, found, "residual")
    return found


@matmul.meaning
def _(run: Run, x: F32 | Quantized, W: Weight, bias: Weight | None, residual: F32 | None) -> F32:
    y = ar.product(x, W)
    if bias is not None:
        y = y + ar.floats(bias)
    return y if residual is None else y + residual


@op("lowered")
def glu_matmul(x: Type, Wgate: Type, Wup: Type, *, act: str) -> Type:
    """`act(Wgate x) * (Wup x)`."""
    check_gate(act)
    check_activations_of(x, Wgate)
    check_activations_of(x, Wup)
    found = product_type(x, Wgate, None)
    same(product_type(x, Wup, None), found, "Wup x")
    return found


@glu_matmul.meaning
def _(run: Run, x: F32 | Quantized, Wgate: Weight, Wup: Weight, *, act: str) -> F32:
    return ar.glu(ar.product(x, Wgate), ar.product(x, Wup), act)


# ---- gates -------------------------------------------------------------------------------


@op("lowered")
def glu(gate: Type, up: Type, *, act: str) -> Type:
    """`act(gate) * up`."""
    check_gate(act)
    same(up, tensor(gate, "gate", 2), "up")
    return gate


@glu.meaning
def _(run: Run, gate: F32, up: F32, *, act: str) -> F32:
    return ar.glu(gate, up, act)


@op("lowered")
def glu_quantize(gate: Type, up: Type, *, act: str, block: int) -> Type:
    """`quantize(glu(gate, up))`."""
    check_gate(act)
    same(up, tensor(gate, "gate", 2), "up")
    return quantized_type(tensor(gate, "gate", 2), block)


@glu_quantize.meaning
def _(run: Run, gate: F32, up: F32, *, act: str, block: int) -> Quantized:
    return ar.quantize(ar.glu(gate, up, act), block)


# ---- attention -----------------------------------------------------------------------------


@op("lowered", writes=True)
def rope_write(
    q: Type,
    k: Type | None = None,
    v: Type | None = None,
    q_norm: Type | None = None,
    k_norm: Type | None = None,
    factors: Type | None = None,
    *,
    cache: str,
    eps: float = 0.0,
    norm_last: bool = False,
    kind: str = "none",
    rot: int = 0,
    base: float = 0.0,
    scaling: str | None = None,
    factor: float = 1.0,
    n_ctx_orig: int = 0,
    attn_factor: float = 1.0,
) -> Type:
    """Norms and turns the heads of `q` and `k` (with `norm_last` turns, then norms), writes `k`
    and `v` into `cache`; the new `q`. Without `k` and `v` there are only queries."""
    found = tensor(q, "q", 3)
    same(k is None, v is None, "v")
    if k is None:
        same(k_norm, None, "k_norm")
        return found
    same(tensor(k, "k", 3).shape[2], found.shape[2], "width of k")
    same(tensor(v, "v", 3).shape[:2], tensor(k, "k", 3).shape[:2], "rows and heads of v")
    same(q_norm is None, k_norm is None, "norms of q and k")
    return found


@rope_write.meaning
def _(
    run: Run,
    q: F32,
    k: F32 | None,
    v: F32 | None,
    q_norm: Weight | None,
    k_norm: Weight | None,
    factors: Weight | None,
    *,
    cache: str,
    eps: float,
    norm_last: bool,
    kind: str,
    rot: int,
    base: float,
    scaling: str | None,
    factor: float,
    n_ctx_orig: int,
    attn_factor: float,
) -> F32:
    def normed(x: F32, w: Weight | None) -> F32:
        return x if w is None else ar.rms_norm(x, ar.floats(w), eps)

    def turned(x: F32) -> F32:
        if kind == "none":
            return x
        how = rope_scaling(scaling, factor, n_ctx_orig, attn_factor)
        return ar.rope(x, *rope_at(run, rot, base, how, factors), kind)

    def both(x: F32, w: Weight | None) -> F32:
        return normed(turned(x), w) if norm_last else turned(normed(x, w))

    if k is not None and v is not None:
        run.write(cache, both(k, k_norm), v)
    return both(q, q_norm)


@op("lowered")
def attend(
    q: Type,
    sinks: Type | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    cache: str,
) -> Type:
    """Attends along each row's own path in `cache`, which `rope_write` has written."""
    return tensor(q, "q", 3)


@attend.meaning
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


# ---- experts -------------------------------------------------------------------------------
# Values of chosen experts are `[T, used, ...]`, a row's experts in ascending order.


@op("lowered")
def route(
    logits: Type,
    select_bias: Type | None = None,
    expert_scale: Type | None = None,
    *,
    n_used: int,
    norm_weights: bool = True,
    router: str = "softmax",
    weight_scale: float = 1.0,
) -> Type:
    """The `n_used` best experts of each row by the router's logits, and their weights."""
    found = tensor(logits, "logits", 2)
    experts = extent(found, "logits")
    check_router(router, n_used, experts, select_bias, expert_scale)
    return RoutingType(found.shape[0], n_used, experts)


@route.meaning
def _(
    run: Run,
    logits: F32,
    select_bias: Weight | None,
    expert_scale: Weight | None,
    *,
    n_used: int,
    norm_weights: bool,
    router: str,
    weight_scale: float,
) -> Routing:
    bias = None if select_bias is None else ar.floats(select_bias)
    scale = None if expert_scale is None else ar.floats(expert_scale)
    return ar.route(logits, ar.Router(n_used, norm_weights, router, weight_scale), bias, scale)


@op("lowered")
def expert_rows(x: Type, routing: Type) -> Type:
    """Each row once for each of its experts; kernels lay the rows of an expert together."""
    found, to = activations(x, "x"), routing_of(routing, "routing")
    same(found.shape[:-1], (to.rows,), "rows of x")
    shape = (to.rows, to.used, extent(found, "x"))
    if isinstance(found, QuantType):
        return QuantType(found.block, shape)
    return TensorType(DType.f32, shape)


@expert_rows.meaning
def _(run: Run, x: F32 | Quantized, routing: Routing) -> F32 | Quantized:
    used = routing.experts.shape[1]
    if isinstance(x, Quantized):
        q = np.repeat(x.q[:, None], used, axis=1)
        return Quantized(x.block, q, np.repeat(x.d[:, None], used, axis=1))
    return np.repeat(x[:, None], used, axis=1)


@op("lowered")
def expert_matmul(x: Type, routing: Type, W: Type, bias: Type | None = None) -> Type:
    """Each row `[T, used, K]` times the matrix of its expert in `W [E, N, K]`, then `+` its row
    of `bias [E, N]`."""
    found, to = activations(x, "x"), routing_of(routing, "routing")
    experts, n, k = weight_of(W, "W", 3).shape
    same(experts, to.experts, "experts of W")
    same(found.shape, (to.rows, to.used, k), "x")
    check_activations_of(x, W, 3)
    expert_bias(bias, experts, n)
    return f32(to.rows, to.used, n)


@expert_matmul.meaning
def _(run: Run, x: F32 | Quantized, routing: Routing, W: Weight, bias: Weight | None) -> F32:
    return ar.expert_product(x, routing, W, bias)


@op("lowered")
def expert_glu(gate: Type, up: Type, routing: Type, *, act: str, block: int | None = None) -> Type:
    """`act(gate) * up`, quantized where there is a `block`, for the rows that `routing` placed."""
    check_gate(act)
    found, to = tensor(gate, "gate", 3), routing_of(routing, "routing")
    same(found.shape[:2], (to.rows, to.used), "rows of gate")
    same(up, found, "up")
    return found if block is None else quantized_type(found, block)


@expert_glu.meaning
def _(
    run: Run, gate: F32, up: F32, routing: Routing, *, act: str, block: int | None
) -> F32 | Quantized:
    h = ar.glu(gate, up, act)
    if block is None:
        return h
    flat = ar.quantize(h.reshape(-1, h.shape[-1]), block)
    return Quantized(block, flat.q.reshape(h.shape), flat.d.reshape(*h.shape[:2], -1))


@op("lowered")
def expert_sum(y: Type, routing: Type, residual: Type | None = None) -> Type:
    """The rows times their experts' weights, summed in ascending expert index, then
    `+ residual`."""
    found, to = tensor(y, "y", 3), routing_of(routing, "routing")
    same(found.shape[:2], (to.rows, to.used), "rows of y")
    result = f32(to.rows, extent(found, "y"))
    if residual is not None:
        same(residual, result, "residual")
    return result


@expert_sum.meaning
def _(run: Run, y: F32, routing: Routing, residual: F32 | None) -> F32:
    total = ar.expert_sum(y, routing)
    return total if residual is None else residual + total
