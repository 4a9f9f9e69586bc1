"""A broken graph is reported with pass, value, expected and got."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.tiny_models import tiny_model

from kinetic.errors import InternalError
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph, Node
from kinetic.ir.rewrite import replace as put
from kinetic.ir.types import f32
from kinetic.ir.verify import verify


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Graph:
    path = tiny_model("qwen2", tmp_path_factory.mktemp("m") / "m.gguf", n_layers=2)
    return build(GGUFFile.open(path))


def find(graph: Graph, name: str) -> Node:
    return next(node for node in graph if node.name == name)


def test_a_built_graph_is_fine(graph):
    verify(graph)


def test_a_wrong_type_is_found(graph):
    old = find(graph, "blk.0.attn_norm")
    broken = Node(old.op, f32("T", 7), old.inputs, old.attrs, old.name)
    message = r"after fuse: %blk.0.attn_norm = rms_norm: expected f32\[T, 256\], got f32\[T, 7\]"
    with pytest.raises(InternalError, match=message):
        verify(Graph(graph.inputs, {"logits": broken}, graph.name, graph.meta), "fuse")


def test_wrong_attributes_and_ops_are_found(graph):
    old = find(graph, "blk.0.attn_norm")
    for broken in (
        Node(old.op, old.type, old.inputs, {}, old.name),
        Node("nothing", old.type, old.inputs, old.attrs, old.name),
    ):
        with pytest.raises(InternalError, match=r"after build: %blk.0.attn_norm = "):
            verify(Graph(graph.inputs, {"logits": broken}, graph.name, graph.meta))


def test_a_name_used_twice_is_found(graph):
    up = find(graph, "blk.1.ffn_up")
    twice = put(graph, {up: up.renamed("blk.0.ffn_up")})
    with pytest.raises(InternalError, match=r"%blk.0.ffn_up = linear: expected one value"):
        verify(twice)


def test_a_value_without_a_name_is_found(graph):
    up = find(graph, "blk.1.ffn_up")
    with pytest.raises(InternalError, match="expected a printable name"):
        verify(put(graph, {up: up.renamed("")}))


def test_caches_are_declared_fit_and_written_once(graph):
    def with_caches(**changed: CacheSpec) -> Graph:
        meta = replace(graph.meta, caches={**graph.meta.caches, **changed})
        return Graph(graph.inputs, graph.outputs, graph.name, meta)

    spare = {"blk.9": CacheSpec("attention", 2, 64, 64)}
    with pytest.raises(InternalError, match=r"cache blk.9: expected one op that writes it"):
        verify(with_caches(**spare))
    thin = {"blk.0": CacheSpec("attention", 2, 64, 32)}
    with pytest.raises(InternalError, match=r"window \(2, 64, 32, None\), got \(2, 64, 64"):
        verify(with_caches(**thin))
    old = find(graph, "blk.1.attention")
    for cache, message in (("blk.0", "one writer of cache blk.0"), ("x", "a cache of")):
        moved = Node.make(old.op, old.inputs, {**old.attrs, "cache": cache}, old.name)
        with pytest.raises(InternalError, match=message):
            verify(put(graph, {old: moved}))


def test_outputs_are_tensors(graph):
    weight = find(graph, "blk.0.attn_q.weight")
    with pytest.raises(InternalError, match="output logits: expected an f32 tensor"):
        verify(Graph(graph.inputs, {"logits": weight}, graph.name, graph.meta))
