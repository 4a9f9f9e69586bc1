"""Experts as operations on rows: route, gather by expert, multiply, sum."""

from __future__ import annotations

from typing import Any

from kinetic.codegen.passes.base import rules_pass
from kinetic.codegen.passes.lower_products import activation_block
from kinetic.ir.graph import Node
from kinetic.ir.rewrite import Match, P, Rewriter, Rule, any_value

_ROUTER = ("n_used", "norm_weights", "router", "weight_scale")


def _lower(r: Rewriter, m: Match) -> Node:
    node, x, act = m["experts"], m["x"], m["experts"].get("act", str)
    how: dict[str, Any] = {name: node.attrs[name] for name in _ROUTER}
    read, bias = m.get("router_x") or x, m.get("router_bias")
    logits = r.node("linear", read, m["gate_inp"], bias, name="logits")
    routing = r.node("route", logits, m.get("select_bias"), m.get("expert_scale"), **how)

    def product(weight: Node, name: str) -> Node:
        block = activation_block(weight)
        rows = x if block is None else r.node("quantize", x, block=block)
        rows = r.node("expert_rows", rows, routing)
        return r.node("expert_matmul", rows, routing, weight, m.get(f"{name}_bias"), name=name)

    gate, up = product(m["gate"], "gate"), product(m["up"], "up")
    block = activation_block(m["down"])
    h = r.node("expert_glu", gate, up, routing, act=act, block=block)
    y = r.node("expert_matmul", h, routing, m["down"], m.get("down_bias"), name="down")
    return r.node("expert_sum", y, routing)


_weights = [any_value(name) for name in ("gate_inp", "gate", "up", "down")]
_weights += [
    any_value(name, optional=True)
    for name in (
        "select_bias",
        "router_x",
        "router_bias",
        "gate_bias",
        "up_bias",
        "down_bias",
        "expert_scale",
    )
]

LOWER_EXPERTS = rules_pass(
    "lower-experts",
    "A row goes to its experts as a copy; rows of one expert meet its weights together.",
    "%y = experts(%x, %Wr, %Wg, %Wu, %Wd, n_used=2)",
    "%r = route(linear(%x, %Wr), n_used=2); %a = expert_rows(quantize(%x), %r); "
    "%h = expert_glu(expert_matmul(%a, %r, %Wg), expert_matmul(%a, %r, %Wu), %r); "
    "%y = expert_sum(expert_matmul(%h, %r, %Wd), %r)",
    [Rule("experts", P("experts", any_value("x"), *_weights, name="experts"), _lower)],
)
