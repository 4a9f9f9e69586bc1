"""Later attention decoders against llama.cpp, whose logits for tiny seeded models are kept.

`golden/logits/llama_cpp.npz` holds them (0.3.36 of its Python package, F32 cache, no flash
attention): of `tokens`, the logits after every eighth. Models with GELU are missing, for llama.cpp
reads it from a table of F16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cpu_device import same_words
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine, Work

SIZE = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 288, "n_layers": 4}
STEP = 8


ARCHS = ("smollm3", "phi3", "gpt-oss", "mistral3", "glm4", "qwen3vl", "qwen2moe")


@pytest.mark.parametrize("arch", ARCHS)
def test_logits_are_llama_cpps(arch: str, tmp_path: Path, golden_dir: Path) -> None:
    golden = np.load(golden_dir / "logits" / "llama_cpp.npz")
    tokens, expected = golden["tokens"].tolist(), golden[arch]
    path = tiny_model(arch, tmp_path / "m.gguf", formats="F32", **SIZE)
    with GGUFFile.open(path) as file:
        graph = build(file)
        found = Reference(graph, weights_of(file), "f32").step(rows(tokens))["logits"]
        program = compile_graph(graph, cpu_target(), kv_type="f32", max_rows=96, max_outputs=96)
        cpu = CpuDevice(program, file, threads=2, n_ctx=128, n_pages=Engine.pages_for(128))
        try:
            run = Engine(cpu, 128, Engine.pages_for(128))
            (got,) = run.step([Work(run.new_sequence(), tokens, len(tokens))])
            assert same_words(got, found)
        finally:
            cpu.close()
    assert np.abs(found[STEP - 1 :: STEP] - expected).max() < 3e-4
    assert (found[STEP - 1 :: STEP].argmax(axis=1) == expected.argmax(axis=1)).all()


def graph_of_file(tmp_path: Path, arch: str, metadata: dict[str, object] | None = None) -> object:
    path = tiny_model(arch, tmp_path / "m.gguf", formats="F32", metadata=metadata, **SIZE)
    with GGUFFile.open(path) as file:
        return build(file)


def test_layers_of_gemma4_share_caches(tmp_path: Path) -> None:
    graph = build(GGUFFile.open(tiny_model("gemma4", tmp_path / "m.gguf", **SIZE, formats="F32")))
    assert list(graph.meta.caches) == ["blk.0", "blk.1"]
    again = [node.get("cache", str) for node in graph if node.op == "attention_again"]
    assert again == ["blk.0", "blk.1"]
    widths = [(c.k, c.heads, c.window) for c in graph.meta.caches.values()]
    assert widths == [(16, 2, 16), (32, 1, None)]


@pytest.mark.parametrize("shared", [1, 3, 4, 99])
def test_a_cache_of_the_wrong_kind_is_not_shared(tmp_path: Path, shared: int) -> None:
    key = "gemma4.attention.shared_kv_layers"
    with pytest.raises(ModelFileError, match=f"{key} is {shared}"):
        graph_of_file(tmp_path, "gemma4", {key: shared})


@pytest.mark.parametrize(
    ("arch", "key", "value"),
    [
        ("gpt-oss", "rope.freq_base_swa", 5e5),
        ("mistral3", "rope.scaling.yarn_log_multiplier", 0.5),
        ("mistral3", "rope.scaling.yarn_beta_fast", 8.0),
        ("glm4", "nextn_predict_layers", 1),
        ("qwen3vl", "attention.sliding_window", 64),
        ("smollm3", "rope.scaling.type", "longrope"),
    ],
)
def test_what_a_family_lacks_is_named(tmp_path: Path, arch: str, key: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match="longrope" if value == "longrope" else key):
        graph_of_file(tmp_path, arch, {f"{arch}.{key}": value})


@pytest.mark.parametrize(
    ("n_ctx", "taken"),
    [(None, "short"), (512, "short"), (513, "long"), (4096, "long"), (0, "long")],
)
def test_phi3_turns_by_the_factors_for_its_context(
    tmp_path: Path, n_ctx: int | None, taken: str
) -> None:
    path = tiny_model("phi3", tmp_path / "m.gguf", formats="F32", **SIZE)
    with GGUFFile.open(path) as file:
        graph = build(file, n_ctx)
        assert graph.meta.n_ctx_train == (512 if taken == "short" else 1024)
        assert {n.get("attn_factor", float) for n in graph if n.op == "rope"} == {1.19}
        assert [w.name for w in graph.weights() if "factors" in w.name] == [
            f"rope_factors_{taken}.weight"
        ]


def test_phi3_loads_for_the_context_that_is_asked_for(tmp_path: Path) -> None:
    """As llama.cpp chooses: by the context, not by how far a prompt comes."""
    path = tiny_model("phi3", tmp_path / "m.gguf", formats="F32", **SIZE)
    found, prompt = {}, np.random.default_rng(3).integers(0, 288, 40).tolist()
    for n_ctx in (None, 256, 768, 0):
        model = Model.load(path, ctx_size=n_ctx, threads=1)
        found[n_ctx] = (model.n_ctx, model.engine.prefill(model.engine.new_sequence(), prompt))
        model.close()
    assert [n for n, _ in found.values()] == [512, 256, 768, 1024]
    assert same_words(found[None][1], found[256][1]) and same_words(found[768][1], found[0][1])
    assert not same_words(found[256][1], found[768][1])


@pytest.mark.parametrize("arch", ["gpt-oss", "gemma4"])
def test_long_paths_give_the_references_words(arch: str, tmp_path: Path) -> None:
    """Past a segment of 512 positions, on threads that share segments: sinks come in once, and
    queries alone find what another layer wrote."""
    tokens = np.random.default_rng(3).integers(0, 288, 540).tolist()
    path = tiny_model(arch, tmp_path / "m.gguf", formats="Q8_0", **SIZE)
    with GGUFFile.open(path) as file:
        graph = build(file)
        reference = Reference(graph, weights_of(file))
        reference.step(rows(tokens[:532], wanted="last"))
        expected = reference.step(rows(tokens[532:], start=532))["logits"]
        program = compile_graph(graph, cpu_target(), max_rows=128, max_outputs=128)
        for threads in (1, 3):
            pages = Engine.pages_for(576)
            cpu = CpuDevice(program, file, threads=threads, n_ctx=576, n_pages=pages)
            try:
                run = Engine(cpu, 576, pages)
                sequence = run.new_sequence()
                run.prefill(sequence, tokens[:532])
                for token, logits in zip(tokens[532:], expected, strict=True):
                    assert same_words(run.decode(sequence, token), logits)
            finally:
                cpu.close()


def test_a_sink_takes_its_share_and_adds_nothing() -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((1, 2, 8), (9, 1, 8), (9, 1, 8)))
    at, sinks = np.array([8], np.int32), np.array([0.5, -2.0], np.float32)
    got = ar.attend(q, at, k, v, 0.4, sinks=sinks)
    scores = (q[0].astype(np.float64) @ k[:, 0].T) * 0.4
    e = np.exp(scores)
    exact = e @ v[:, 0] / (e.sum(axis=1) + np.exp(sinks))[:, None]
    assert np.abs(got[0] - exact).max() < 1e-6
    without = ar.attend(q, at, k, v, 0.4)
    none = np.full(2, -1e30, np.float32)
    assert same_words(ar.attend(q, at, k, v, 0.4, sinks=none), without)
