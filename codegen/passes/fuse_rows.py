"""Operator fusion of row operations: what reads a row once does all it can with it."""

from __future__ import annotations

from kinetic.codegen.passes.base import rules_pass
from kinetic.ir.graph import Node
from kinetic.ir.rewrite import Match, P, Rewriter, Rule, any_value

_ACTS = ("silu", "gelu_tanh", "sigmoid")


def _glu(r: Rewriter, m: Match) -> Node:
    return r.node("glu", m["gate"], m["up"], act=m["act"].op)


FUSE_GATES = rules_pass(
    "fuse-gates",
    "A gate's activation and its product with the other half are one walk.",
    "%a = silu(%gate); %y = mul(%a, %up)",
    "%y = glu(%gate, %up, act='silu')",
    [
        Rule(
            f"glu-{act}",
            P("mul", P(act, any_value("gate"), name="act", uses=1), any_value("up")),
            _glu,
        )
        for act in _ACTS
    ],
)


def _norm_quantize(r: Rewriter, m: Match) -> Node:
    return r.node(
        "norm_quantize",
        m["x"],
        m.get("w"),
        eps=m["norm"].get("eps", float),
        block=m["quantized"].get("block", int),
    )


def _glu_quantize(r: Rewriter, m: Match) -> Node:
    return r.node(
        "glu_quantize",
        m["gate"],
        m["up"],
        act=m["glu"].get("act", str),
        block=m["quantized"].get("block", int),
    )


_norm = P("rms_norm", any_value("x"), any_value("w", optional=True), name="norm", uses=1)
_gate = P("glu", any_value("gate"), any_value("up"), name="glu", uses=1)

FUSE_QUANTIZE = rules_pass(
    "fuse-quantize",
    "Rows that are only read quantized are quantized where they are made.",
    "%h = rms_norm(%x, %w); %a = quantize(%h, block=32)",
    "%a = norm_quantize(%x, %w, block=32)",
    [
        Rule("norm", P("quantize", _norm, name="quantized"), _norm_quantize),
        Rule("glu", P("quantize", _gate, name="quantized"), _glu_quantize),
    ],
)


def _residual(r: Rewriter, m: Match) -> Node:
    product = m["product"]
    return r.node("matmul", product.arg("x"), product.arg("W"), product.maybe("bias"), m["x"])


_product = P(
    "matmul",
    any_value(),
    any_value(),
    any_value(optional=True),
    name="product",
    uses=1,
)


def _expert_residual(r: Rewriter, m: Match) -> Node:
    return r.node("expert_sum", m["y"], m["routing"], m["x"])


_experts = P("expert_sum", any_value("y"), any_value("routing"), uses=1)

FUSE_RESIDUAL = rules_pass(
    "fuse-residual",
    "A product that only joins the residual stream adds itself to it.",
    "%y = matmul(%a, %W); %x2 = add(%x, %y)",
    "%x2 = matmul(%a, %W, residual=%x)",
    [
        Rule("add-right", P("add", any_value("x"), _product), _residual),
        Rule("add-left", P("add", _product, any_value("x")), _residual),
        Rule("experts-right", P("add", any_value("x"), _experts), _expert_residual),
        Rule("experts-left", P("add", _experts, any_value("x")), _expert_residual),
    ],
)
