"""Instruction selection for products: `linear` becomes quantize and an integer product."""

from __future__ import annotations

from kinetic.codegen.passes.base import rules_pass
from kinetic.errors import UnsupportedError
from kinetic.ir.graph import Node
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat
from kinetic.ir.rewrite import Match, P, Rewriter, Rule, any_value
from kinetic.ir.types import WeightType


def activation_block(weight: Node) -> int | None:
    """Values of the activation block that a weight's format wants; None for floats."""
    assert isinstance(weight.type, WeightType)
    fmt = FORMATS.get(weight.type.format_name)
    if fmt is None:
        raise UnsupportedError(
            f"tensor {weight.get('name', str)} is {weight.type.format_name}, a format that "
            "Kinetic does not compute with yet; use another quantization of the model"
        )
    return fmt.block if isinstance(fmt, BlockFormat) else None


def _lower(r: Rewriter, m: Match) -> Node:
    block = activation_block(m["W"])
    x = m["x"] if block is None else r.node("quantize", m["x"], block=block)
    return r.node("matmul", x, m["W"], m.get("bias"))


LOWER_PRODUCTS = rules_pass(
    "lower-products",
    "A product takes its rows in the form its weight's format wants; rows are quantized once "
    "for all the products that share them.",
    "%q = linear(%x, %Wq); %k = linear(%x, %Wk)",
    "%a = quantize(%x, block=32); %q = matmul(%a, %Wq); %k = matmul(%a, %Wk)",
    [
        Rule(
            "linear",
            P("linear", any_value("x"), any_value("W"), any_value("bias", optional=True)),
            _lower,
        )
    ],
)
