"""Operator fusion before attention: norm, rotation and cache write are one walk."""

from __future__ import annotations

from typing import Any, cast

from kinetic.codegen.passes.base import rules_pass
from kinetic.ir.graph import Node
from kinetic.ir.ops.spec import Attr
from kinetic.ir.rewrite import Match, P, Rewriter, Rule, any_value

_ROPE = ("kind", "rot", "base", "scaling", "factor", "n_ctx_orig", "attn_factor")


Heads = tuple[Node, Node]
"""Those of the queries and those of the keys."""


def peel_ropes(q: Node, k: Node) -> tuple[Heads, dict[str, Attr], Node | None]:
    """What one rope turns in both, its attributes and factors; the nodes themselves without."""
    if q.op == k.op == "rope" and q.maybe("factors") is k.maybe("factors"):
        found = [{name: node.attrs[name] for name in _ROPE} for node in (q, k)]
        if found[0] == found[1]:
            return (q.arg("x"), k.arg("x")), found[0], q.maybe("factors")
    return (q, k), {}, None


def peel_norms(q: Node, k: Node) -> tuple[Heads, Heads | tuple[None, None], float]:
    """What head norms of one eps read, their weights and eps; the nodes themselves without."""
    if all(n.op == "rms_norm" and n.maybe("w") is not None for n in (q, k)):
        eps = q.get("eps", float)
        if eps == k.get("eps", float):
            return (q.arg("x"), k.arg("x")), (q.arg("w"), k.arg("w")), eps
    return (q, k), (None, None), 0.0


def _fuse(r: Rewriter, m: Match) -> Node:
    attention, q, k = m["attention"], m["q"], m.get("k")
    # A layer that reads another's cache has queries alone: they count as their own keys.
    heads = (q, k or q)
    norm_last = all(h.op == "rms_norm" and h.arg("x").op == "rope" for h in heads)
    if norm_last:
        heads, weights, eps = peel_norms(*heads)
        heads, turn, factors = peel_ropes(*heads)
    else:
        heads, turn, factors = peel_ropes(*heads)
        heads, weights, eps = peel_norms(*heads)
    cache, how = attention.get("cache", str), cast("dict[str, Any]", turn)
    if norm_last and weights[0] is not None:
        how["norm_last"] = True
    inputs = (*heads, m["v"], *weights) if k else (heads[0], None, None, weights[0], None)
    written = r.node("rope_write", *inputs, factors, cache=cache, eps=eps, **how)
    attrs: dict[str, Any] = {name: attention.attrs[name] for name in ("scale", "window", "softcap")}
    return r.node("attend", written, m.get("sinks"), cache=cache, **attrs)


_q, _k, _v = (any_value(name) for name in "qkv")
_sinks = any_value("sinks", optional=True)

FUSE_ATTENTION = rules_pass(
    "fuse-attention",
    "Norming and turning heads and writing the cache are one walk; attending is another.",
    "attention(rope(rms_norm(%q, %wq)), rope(rms_norm(%k, %wk)), %v), or norms of turned heads",
    "attend(rope_write(%q, %k, %v, %wq, %wk))",
    [
        Rule("attention", P("attention", _q, _k, _v, _sinks, name="attention"), _fuse),
        Rule("again", P("attention_again", _q, _sinks, name="attention"), _fuse),
    ],
)
