"""The ops that passes put in place of model ops: the same words, in fewer walks over memory.

    activations   quantize  norm_quantize
    products      matmul  glu_matmul
    gates         glu  glu_quantize

Each meaning is the composition of the model ops that it replaces, so a pass is checked by
`==` on the reference.
"""

from __future__ import annotations

from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.ops.model import check_activation, product_type
from kinetic.ir.ops.spec import (
    F32,
    FLOAT_FORMATS,
    Quantized,
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
from kinetic.ir.types import QuantType, TensorType, Type

BLOCKS = (32, 256)
"""Values that share one activation scale: those of the weight format's block."""


def quantized_type(x: TensorType, block: int) -> QuantType:
    """The type of these rows in blocks of that size.

    Raises: RuleError.
    """
    if block not in BLOCKS or extent(x, "x") % block:
        raise RuleError("block", f"a divisor of {extent(x, 'x')} in {BLOCKS}", block)
    return QuantType(block, x.shape)


def check_activations_of(x: Type, W: Type) -> None:
    """Block formats take quantized rows, float formats plain ones.

    Raises: RuleError.
    """
    plain = weight_of(W, "W", 2).format_name in FLOAT_FORMATS
    if plain == isinstance(x, QuantType):
        raise RuleError("x", "f32 rows" if plain else "quantized rows", x)


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
    check_activation(act)
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
    check_activation(act)
    same(up, tensor(gate, "gate", 2), "up")
    return gate


@glu.meaning
def _(run: Run, gate: F32, up: F32, *, act: str) -> F32:
    return ar.glu(gate, up, act)


@op("lowered")
def glu_quantize(gate: Type, up: Type, *, act: str, block: int) -> Type:
    """`quantize(glu(gate, up))`."""
    check_activation(act)
    same(up, tensor(gate, "gate", 2), "up")
    return quantized_type(tensor(gate, "gate", 2), block)


@glu_quantize.meaning
def _(run: Run, gate: F32, up: F32, *, act: str, block: int) -> Quantized:
    return ar.quantize(ar.glu(gate, up, act), block)
