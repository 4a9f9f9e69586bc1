"""Attention over whole texts in the form that kernels take, as `fuse-attention` does for paths."""

from __future__ import annotations

from typing import Any, cast

from kinetic.codegen.passes.base import rules_pass
from kinetic.codegen.passes.fuse_attention import peel_norms, peel_ropes
from kinetic.ir.graph import Node
from kinetic.ir.rewrite import Match, P, Rewriter, Rule, any_value


def _fuse(r: Rewriter, m: Match) -> Node:
    node, heads = m["attention"], (m["q"], m["k"])
    heads, turn, factors = peel_ropes(*heads)
    heads, weights, eps = peel_norms(*heads)
    cache, how = node.get("cache", str), cast("dict[str, Any]", turn)
    written = r.node("rope_write", *heads, m["v"], *weights, factors, cache=cache, eps=eps, **how)
    attrs: dict[str, Any] = {name: node.attrs[name] for name in ("scale", "window")}
    return r.node("attend_text", written, cache=cache, **attrs)


FUSE_TEXT_ATTENTION = rules_pass(
    "fuse-text-attention",
    "Attention over whole texts is cut like that along paths: write, then attend.",
    "text_attention(rope(rms_norm(%q, %wq)), rope(rms_norm(%k, %wk)), %v)",
    "attend_text(rope_write(%q, %k, %v, %wq, %wk))",
    [
        Rule(
            "text-attention",
            P("text_attention", any_value("q"), any_value("k"), any_value("v"), name="attention"),
            _fuse,
        )
    ],
)
