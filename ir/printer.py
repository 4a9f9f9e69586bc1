"""How a graph prints: one value a line, named by scope, typed, shapes in letters.

    graph "tiny" arch="llama" n_ctx_train=1024 n_vocab=320 ...
    cache "blk.0" : attention heads=2 k=16 v=16

    %blk.0.attn_q.weight : q4_k[64, 64]

    %tokens : i32[T] = tokens()
    %blk.0.attn_norm : f32[T, 64] = rms_norm(%x, w=%blk.0.attn_norm.weight, eps=1e-06)

    return logits=%logits

Optional inputs and all attributes print as keywords, attributes only where they differ
from the default. The grammar is `ir.lark`; `text.parse` reads this back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from kinetic.errors import InternalError
from kinetic.ir.ops.spec import attr_text

if TYPE_CHECKING:  # for signatures alone: graph.py imports this file
    from kinetic.ir.graph import CacheSpec, Graph, Meta, Node


def print_graph(graph: Graph) -> str:
    """The graph's text, which parses back to the same graph.

    Raises: InternalError when two values share a name.
    """
    _check_names(graph)
    meta = graph.meta
    lines = [f"graph {attr_text(graph.name)} {_settings(meta)}"]
    lines += [f"cache {attr_text(n)} : {_cache(c)}" for n, c in meta.caches.items()]
    nodes = list(dict.fromkeys([*graph.inputs, *graph.nodes]))
    lines += ["", *(node_text(n) for n in nodes if n.op == "weight")]
    block = ""
    for node in nodes:
        if node.op != "weight":
            if _block(node) != block:
                lines.append("")
                block = _block(node)
            lines.append(node_text(node))
    lines += ["", "return " + ", ".join(f"{k}=%{n.name}" for k, n in graph.outputs.items())]
    return "\n".join(lines) + "\n"


def node_text(node: Node) -> str:
    """One line: name, type, op, inputs, attributes. A plain weight needs no op."""
    head = f"%{node.name} : {node.type}"
    if node.op == "weight" and dict(node.attrs) == plain_weight(node.name, node.attrs):
        return head
    parts = []
    for p, value in zip(node.spec.inputs, node.inputs, strict=True):
        if value is not None:
            parts.append(f"%{value.name}" if p.required else f"{p.name}=%{value.name}")
    for p in node.spec.attrs:
        value_text = attr_text(node.attrs[p.name])
        if p.required or value_text != attr_text(p.default):
            parts.append(f"{p.name}={value_text}")
    return f"{head} = {node.op}({', '.join(parts)})"


def _block(node: Node) -> str:
    """`blk.3` of `blk.3.attn_q`: a blank line goes where this changes."""
    parts = node.name.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 and parts[1].isdigit() else "-"


def plain_weight(name: str, attrs: Mapping[str, object]) -> dict[str, object]:
    """The attributes of a whole tensor of the file that goes by its own name."""
    plain = dict.fromkeys(attrs)
    return plain | {"name": name, "format": attrs["format"], "shape": attrs["shape"]}


def _settings(meta: Meta) -> str:
    found = [(f, getattr(meta, f.name)) for f in fields(meta) if f.name != "caches"]
    return " ".join(f"{f.name}={attr_text(v)}" for f, v in found if v != f.default)


def _cache(cache: CacheSpec) -> str:
    text = f"{cache.kind} heads={cache.heads} k={cache.k} v={cache.v}"
    return text if cache.window is None else f"{text} window={cache.window}"


def _check_names(graph: Graph) -> None:
    seen: dict[str, Node] = {}
    for node in graph.nodes:
        other = seen.setdefault(node.name, node)
        if not node.name or other is not node:
            raise InternalError(f"two values are called %{node.name}: {other!r} and {node!r}")
