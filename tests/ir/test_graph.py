"""Nodes are interned, graphs are walked in order, names stay out of a value's identity."""

from __future__ import annotations

import pytest

from kinetic.errors import InternalError
from kinetic.ir.build import Builder
from kinetic.ir.graph import Graph, Meta, Node, topological
from kinetic.ir.ops import RuleError
from kinetic.ir.types import DType, TensorType, f32

META = Meta("test", 64, 8, 1, 32, 1, 1, 32)
W = {"name": "w", "format": "F32", "shape": (32, 32)}


def small() -> tuple[Builder, Graph]:
    b = Builder()
    w = b.declare("w", "F32", (32, 32))
    x = b.embed(b.tokens(), w, "x")
    with b.scope("blk.0"):
        y = b.add(x, b.silu(x), "y")
    return b, b.graph("small", META, logits=b.take_outputs(y, "logits"))


def test_equal_nodes_are_the_same_object():
    assert Node.make("weight", (), W, "w") is Node.make("weight", (), dict(W), "w")
    assert Node.make("weight", (), W, "w") is not Node.make("weight", (), W, "v")


def test_attributes_of_different_type_are_different_values():
    x = Node.make("embed", (Node.make("tokens"), Node.make("weight", (), W)))
    one = Node.make("scale", (x,), {"value": 1})
    assert one.attrs["value"] == 1.0 and isinstance(one.attrs["value"], float)
    zero, minus = (Node.make("scale", (x,), {"value": v}) for v in (0.0, -0.0))
    assert zero is not minus


def test_a_builder_gives_one_value_one_node_and_the_first_name_wins():
    b, graph = small()
    x = next(n for n in graph if n.name == "x")
    assert b.silu(x, "again").name == "blk.0.silu"
    assert b.silu(x, "again") is next(n for n in graph if n.op == "silu")


def test_names_carry_the_scope_and_stay_unique():
    b, graph = small()
    x = next(n for n in graph if n.name == "x")
    with b.scope("blk.0"):
        assert b.scale(x, 2.0, "y").name == "blk.0.y.2"
        assert b.scale(x, 3.0, "y").name == "blk.0.y.3"
    assert [n.name for n in graph] == ["tokens", "w", "x", "blk.0.silu", "blk.0.y", "logits"]


def test_types_use_letters_for_rows():
    _, graph = small()
    types = {n.name: n.type for n in graph}
    assert types["tokens"] == TensorType(DType.i32, ("T",))
    assert types["blk.0.y"] == f32("T", 32)
    assert str(types["logits"]) == "f32[R, 32]"


def test_inputs_come_before_users_and_uses_count_each_use():
    _, graph = small()
    seen: set[Node] = set()
    for node in graph:
        assert set(node.sources) <= seen
        seen.add(node)
    x = next(n for n in graph if n.name == "x")
    assert [n.op for n in graph.uses[x]] == ["silu", "add"]


def test_a_deep_graph_needs_no_recursion():
    b, graph = small()
    x = next(n for n in graph if n.name == "x")
    for _ in range(5000):
        x = b.scale(x, 2.0)
    assert len(topological([x])) == 5003


def test_accessors_say_what_is_missing():
    _, graph = small()
    silu = next(n for n in graph if n.op == "silu")
    assert silu.arg("x").name == "x"
    norm = Node.make("rms_norm", (silu,), {"eps": 1e-6})
    assert norm.maybe("w") is None and norm.get("eps", float) == 1e-6
    with pytest.raises(InternalError, match="has no input 'w'"):
        norm.arg("w")
    with pytest.raises(InternalError, match="eps is 1e-06"):
        norm.get("eps", int)


def test_the_hash_follows_names_and_values():
    _, graph = small()
    assert graph.hash() == small()[1].hash()
    assert Graph(graph.inputs, graph.outputs, "other", META).hash() != graph.hash()


def test_a_node_is_frozen():
    _, graph = small()
    node = graph.nodes[0]
    with pytest.raises(AttributeError):
        node.name = "y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        graph.nodes[1].attrs["name"] = "y"  # type: ignore[index]


@pytest.mark.parametrize("name", ["a b", "a\nb", "%a", "é"])
def test_names_that_would_not_print_are_refused(name):
    with pytest.raises(RuleError, match="name: expected characters"):
        Node.make("tokens", name=name)
