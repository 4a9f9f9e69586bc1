"""Operator fusion before attention: norm, rotation and cache write are one walk."""

from __future__ import annotations

from typing import Any

from kinetic.codegen.passes.base import rules_pass
from kinetic.ir.graph import Node
from kinetic.ir.ops.spec import Attr
from kinetic.ir.rewrite import Match, P, Rewriter, Rule, any_value

_ROPE = ("kind", "rot", "base", "scaling", "factor", "n_ctx_orig", "attn_factor")


def _peel_rope(node: Node) -> tuple[Node, dict[str, Attr], Node | None]:
    """What a rope turns, its attributes and its factors; the node itself without one."""
    if node.op != "rope":
        return node, {}, None
    return node.arg("x"), {name: node.attrs[name] for name in _ROPE}, node.maybe("factors")


def _peel_norm(node: Node) -> tuple[Node, Node | None, float]:
    """What a head norm reads, its weight and its eps; the node itself without one."""
    if node.op != "rms_norm" or node.maybe("w") is None:
        return node, None, 0.0
    return node.arg("x"), node.arg("w"), node.get("eps", float)


def _fuse(r: Rewriter, m: Match) -> Node:
    attention = m["attention"]
    q, q_rope, q_factors = _peel_rope(m["q"])
    k, k_rope, k_factors = _peel_rope(m["k"])
    if (q_rope, q_factors) != (k_rope, k_factors):
        q, k, q_rope, q_factors = m["q"], m["k"], {}, None
    q_in, q_norm, eps = _peel_norm(q)
    k_in, k_norm, k_eps = _peel_norm(k)
    if q_norm is None or k_norm is None or eps != k_eps:
        q_in, k_in, q_norm, k_norm, eps = q, k, None, None, 0.0
    cache = attention.get("cache", str)
    turn: dict[str, Any] = dict(q_rope)
    written = r.node(
        "rope_write", q_in, k_in, m["v"], q_norm, k_norm, q_factors, cache=cache, eps=eps, **turn
    )
    attrs: dict[str, Any] = {name: attention.attrs[name] for name in ("scale", "window", "softcap")}
    return r.node("attend", written, cache=cache, **attrs)


FUSE_ATTENTION = rules_pass(
    "fuse-attention",
    "Norming and turning heads and writing the cache are one walk; attending is another.",
    "attention(rope(rms_norm(%q, %wq)), rope(rms_norm(%k, %wk)), %v)",
    "attend(rope_write(%q, %k, %v, %wq, %wk))",
    [
        Rule(
            "attention",
            P("attention", any_value("q"), any_value("k"), any_value("v"), name="attention"),
            _fuse,
        )
    ],
)
