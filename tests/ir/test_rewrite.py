"""Rules match, share, count uses and keep names; a rewritten graph gives the same words."""

from __future__ import annotations

import numpy as np
import pytest
from support.tiny_models import tiny_model

from kinetic.errors import InternalError
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph, Node
from kinetic.ir.ops.spec import format_of
from kinetic.ir.quant.base import BlockFormat
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.ir.rewrite import Match, P, Rewriter, Rule, any_value, rewrite
from kinetic.ir.types import WeightType
from kinetic.ir.verify import verify


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> GGUFFile:
    formats = {"": "Q4_0", "attn_v": "Q6_K", "ffn_down": "F16"}
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return GGUFFile.open(tiny_model("qwen2", path, formats=formats))


def lower(r: Rewriter, m: Match) -> Node:
    kind = m["W"].type
    assert isinstance(kind, WeightType)
    fmt, x = format_of(kind), m["x"]
    if isinstance(fmt, BlockFormat):
        x = r.node("quantize", x, block=fmt.values, name=f"q{fmt.values}")
    return r.node("matmul", x, m["W"], m.get("bias"), None)


LINEAR = Rule(
    "linear",
    P("linear", any_value("x"), any_value("W"), any_value("bias", optional=True)),
    lower,
)
RESIDUAL = Rule(
    "residual",
    P(
        "add",
        any_value("x"),
        P("matmul", any_value("xq"), any_value("W"), any_value("b", optional=True), uses=1),
        swap=True,
    ),
    lambda r, m: r.node("matmul", m["xq"], m["W"], m.get("b"), m["x"]),
)
GLU = Rule(
    "glu",
    P("mul", P("silu", any_value("gate"), uses=1), any_value("up")),
    lambda r, m: r.node("glu", m["gate"], m["up"], act="silu"),
)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph]


def test_lowering_keeps_every_word(file):
    graph = build(file)
    step = rows([3, 1, 4, 1, 5, 9, 2, 6])
    expected = Reference(graph, weights_of(file)).step(step)["logits"]
    for rules in ([LINEAR], [LINEAR, RESIDUAL], [GLU, LINEAR, RESIDUAL]):
        lowered = rewrite(graph, rules)
        verify(lowered, "lowering")
        got = Reference(lowered, weights_of(file)).step(step)["logits"]
        assert (got.view(np.uint32) == expected.view(np.uint32)).all()
    assert ops(lowered).count("add") == 0 and ops(lowered).count("linear") == 0
    assert ops(lowered).count("glu") == 2


def test_equal_values_are_shared_and_named_after_the_first_user(file):
    lowered = rewrite(build(file), [LINEAR])
    quantized = [node for node in lowered if node.op == "quantize"]
    by_source = {}
    for node in quantized:
        by_source.setdefault(node.arg("x").name, []).append(node)
    # q and k share one of 32-value blocks, v has its own of 256
    assert [n.name for n in by_source["blk.0.attn_norm"]] == [
        "blk.0.attn_q.q32",
        "blk.0.attn_v.q256",
    ]
    assert len(by_source["blk.0.ffn_norm"]) == 1


def test_results_take_the_names_of_what_they_replace(file):
    graph = build(file)
    lowered = rewrite(graph, [LINEAR, RESIDUAL])
    names = {node.name: node.op for node in lowered}
    assert names["blk.0.attn_residual"] == "matmul" and names["logits"] == "matmul"
    assert "blk.0.attn_output" not in names


def test_a_value_used_twice_is_not_taken_away(file):
    graph = build(file)
    y = next(node for node in graph if node.name == "blk.0.attn_output")
    both = graph.with_outputs({**graph.outputs, "hidden": y})
    lowered = rewrite(both, [LINEAR, RESIDUAL])
    names = {node.name: node.op for node in lowered}
    assert names["blk.0.attn_residual"] == "add" and names["blk.1.attn_residual"] == "matmul"


def test_no_rules_change_nothing(file):
    graph = build(file)
    assert rewrite(graph, []).same_as(graph)


def test_a_rule_may_put_a_value_on_top_of_the_old_one(file):
    graph = build(file)
    wrap = Rule(
        "wrap",
        P("rms_norm", any_value("x"), any_value("w"), name="y", where=lambda n: n.name[-1] == "m"),
        lambda r, m: None if r.uses(m["y"]) > 3 else r.node("scale", m["y"], value=1.0, name="s"),
    )
    wrapped = rewrite(graph, [wrap])
    verify(wrapped, "wrap")
    assert {"output_norm", "output_norm.s"} <= {node.name for node in wrapped}


def test_rules_without_end_are_stopped(file):
    double = Rule("double", any_value("x"), lambda r, m: r.node("scale", m["x"], value=2.0))
    only = Rule("double", P("silu", any_value("x"), name="y"), double.build)
    forever = Rule(
        "forever",
        P("scale", any_value("x")),
        lambda r, m: r.node("scale", r.node("silu", m["x"]), value=2.0),
    )
    with pytest.raises(InternalError, match="fire on it without end"):
        rewrite(build(file), [only, forever])


def test_patterns_check_what_they_are_asked():
    t = Node.make("tokens", name="t")
    w = Node.make("weight", (), {"name": "w", "format": "F32", "shape": (4, 4)}, "w")
    x = Node.make("embed", (t, w), {}, "x")
    y = Node.make("add", (x, Node.make("silu", (x,), {}, "s")), {}, "y")
    r = Rewriter(Graph((t,), {"y": y}, "g", None))  # type: ignore[arg-type]
    found: Match = {}
    same = P("add", any_value("a"), P("silu", any_value("a")))
    assert same.match(y, r, found) and found["a"] is x
    assert not P("add", P("silu"), any_value()).match(y, r, {})
    assert not P("add", P("silu", any_value()), any_value()).match(y, r, {})
    assert P("add", P("silu", any_value("a")), any_value("a"), swap=True).match(y, r, {})
    assert not P("rms_norm", any_value(), any_value()).match(
        Node.make("rms_norm", (x,), {"eps": 1.0}), r, {}
    )
    assert P("rms_norm", any_value()).match(Node.make("rms_norm", (x,), {"eps": 1.0}), r, {})
    assert r.uses(x) == 2 and r.uses(y) == 1
