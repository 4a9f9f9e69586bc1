"""Every pass keeps every word: the reference gives the same outputs before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import graph_of, same_words
from support.random_graphs import random_graph
from support.tiny_models import ARCHS, tiny_model

from kinetic.codegen.passes.base import Pass
from kinetic.codegen.passes.fuse_attention import FUSE_ATTENTION
from kinetic.codegen.passes.fuse_rows import FUSE_GATES, FUSE_QUANTIZE, FUSE_RESIDUAL
from kinetic.codegen.passes.lower_products import LOWER_PRODUCTS
from kinetic.codegen.pipeline import CPU_PASSES, run_passes
from kinetic.errors import InternalError, UsageError
from kinetic.families import build
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph
from kinetic.ir.ops.spec import F32, OPS
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.ir.verify import verify

SMALL = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 288}
MIXES: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "32": ({"": "Q4_0", "attn_v": "Q8_0", "ffn_down": "F16", "ffn_up": "Q5_1"}, SMALL),
    "256": ({"": "Q4_K", "attn_v": "Q6_K", "ffn_gate": "Q5_0", "output": "BF16"}, {}),
}
VARIANTS: dict[str, dict[str, object]] = {
    **{f"{arch} {mix}": {"arch": arch, "mix": mix} for arch in ARCHS for mix in MIXES},
    "llama fused bias": {"arch": "llama", "mix": "32", "fused_qkv": True, "bias": True},
    "llama freqs": {"arch": "llama", "mix": "32", "rope_freqs": True, "tied": True},
    "llama experts": {"arch": "llama", "mix": "256", "n_experts": 4},
    "gemma3 softcap": {"arch": "gemma3", "mix": "32", "softcap": 20.0},
}


def two_steps(graph: Graph, file: GGUFFile) -> list[F32]:
    """Logits of a prompt in two chunks, the second with only some outputs wanted."""
    reference = Reference(graph, weights_of(file))
    ids = np.random.default_rng(5).integers(0, 288, 24)
    first = reference.step(rows(ids[:17]))
    second = reference.step(rows(ids[17:], start=17, wanted=[i % 3 == 1 for i in range(7)]))
    return [first["logits"], second["logits"]]


@pytest.mark.parametrize("label", VARIANTS)
def test_passes_keep_the_words_of_models(label: str, tmp_path: Path) -> None:
    options = dict(VARIANTS[label])
    formats, size = MIXES[str(options.pop("mix"))]
    arch = str(options.pop("arch"))
    path = tiny_model(arch, tmp_path / "m.gguf", formats=formats, **{**size, **options})
    with GGUFFile.open(path) as file:
        graph = build(file)
        expected, seen = two_steps(graph, file), []

        def check(name: str, after: Graph) -> None:
            for got, want in zip(two_steps(after, file), expected, strict=True):
                assert same_words(got, want), f"{name} changes words"
            seen.append(name)

        lowered = run_passes(graph, observe=check)
        assert seen == [p.name for p in CPU_PASSES]
        for after in seen:
            again = run_passes(graph, after=after)
            verify(again, after)
        # A second walk over a lowered graph finds nothing more to do.
        assert run_passes(lowered).same_as(lowered)
        assert run_passes(graph).hash() == lowered.hash()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_passes_keep_the_words_of_any_graph(seed: int) -> None:
    graph, memory = random_graph(seed)
    step = rows(np.arange(5), wanted=[True, False, False, True, True])
    with np.errstate(all="ignore"):
        expected = Reference(graph, memory.weight).step(step)

    def check(name: str, after: Graph) -> None:
        with np.errstate(all="ignore"):
            got = Reference(after, memory.weight).step(step)
        assert list(got) == list(expected)
        assert [k for k in got if not same_words(got[k], expected[k])] == [], name

    run_passes(graph, observe=check)


# -- what each pass makes, on its own example ---------------------------------------------


def ops_after(p: Pass, graph: Graph) -> list[str]:
    return [node.op for node in p.run(graph) if node.op not in ("tokens", "weight", "embed")]


def test_a_gate_used_twice_is_not_fused() -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 64)), name="x")
    gate = b.silu(x, name="gate")
    y = b.mul(gate, x, name="y")
    assert ops_after(FUSE_GATES, graph_of({"y": y})) == ["glu"]
    assert ops_after(FUSE_GATES, graph_of({"y": y, "gate": gate})) == ["silu", "mul"]


def test_rows_are_quantized_once_for_products_of_one_block() -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 256)), name="x")
    formats = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "F16", "F32")
    found = {f: b.linear(x, b.declare(f, f, (8, 256)), name=f) for f in formats}
    ops = ops_after(LOWER_PRODUCTS, graph_of(found))
    assert sorted(ops) == ["matmul"] * 6 + ["quantize"] * 2


def test_a_norm_that_is_read_twice_stays_rows() -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 256)), name="x")
    h = b.rms_norm(x, None, 1e-6, name="h")
    y = b.linear(h, b.declare("a", "Q4_0", (8, 256)), name="y")
    one = LOWER_PRODUCTS.run(graph_of({"y": y}))
    assert ops_after(FUSE_QUANTIZE, one) == ["norm_quantize", "matmul"]
    z = b.linear(h, b.declare("b", "Q4_K", (8, 256)), name="z")
    two = LOWER_PRODUCTS.run(graph_of({"y": y, "z": z}))
    assert "rms_norm" in ops_after(FUSE_QUANTIZE, two)


def test_a_product_that_is_read_twice_does_not_vanish_into_the_residual() -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 64)), name="x")
    y = b.linear(x, b.declare("w", "F32", (64, 64)), name="y")
    total = b.add(x, y, name="total")
    alone = LOWER_PRODUCTS.run(graph_of({"total": total}))
    assert ops_after(FUSE_RESIDUAL, alone) == ["matmul"]
    both = LOWER_PRODUCTS.run(graph_of({"total": total, "y": y}))
    assert ops_after(FUSE_RESIDUAL, both) == ["matmul", "add"]


def attention_graph(q_eps: float, k_eps: float) -> Graph:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 64)), name="x")
    h = b.split_heads(x, 4, name="h")
    w = b.declare("w", "F32", (16,))
    q = b.rope(b.rms_norm(h, w, q_eps, name="nq"), None, name="q", kind="neox", rot=16, base=1e4)
    k = b.rope(b.rms_norm(h, w, k_eps, name="nk"), None, name="k", kind="neox", rot=16, base=1e4)
    y = b.attention(q, k, h, scale=0.25, cache="c", name="y")
    return graph_of({"y": b.merge_heads(y)}, {"c": CacheSpec("attention", 4, 16, 16)})


def test_norms_of_different_eps_stay_outside_of_the_walk() -> None:
    same = ops_after(FUSE_ATTENTION, attention_graph(1e-6, 1e-6))
    assert same == ["split_heads", "rope_write", "attend", "merge_heads"]
    assert ops_after(FUSE_ATTENTION, attention_graph(1e-6, 1e-5)).count("rms_norm") == 2


# -- the pipeline ------------------------------------------------------------------------------


def test_an_unknown_pass_is_named_with_those_there_are() -> None:
    graph, _ = random_graph(0)
    with pytest.raises(UsageError, match="no pass is called 'fuse-all'; the passes are fuse-gates"):
        run_passes(graph, after="fuse-all")


def test_a_pass_that_breaks_a_rule_is_named() -> None:
    def broken(graph: Graph) -> Graph:
        node = next(n for n in graph if n.op == "embed")
        object.__setattr__(node, "name", "")
        return graph

    graph, _ = random_graph(1)
    with pytest.raises(InternalError, match=r"^pass break-names: "):
        run_passes(graph, (Pass("break-names", "", "", "", broken),))


def test_every_pass_says_what_it_does() -> None:
    for p in CPU_PASSES:
        assert p.sentence.endswith(".") and p.before and p.after
        mentioned = [op for op in OPS if f"{op}(" in p.before or f"{op}(" in p.after]
        assert mentioned, f"{p.name}: its picture shows no op"
