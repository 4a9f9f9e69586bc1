"""Encoders: every class gives the reference's words, and a text's words are its own.

`golden/logits/encoders.json` freezes the vectors of tiny seeded models; `KINETIC_UPDATE_GOLDEN=1`
rewrites it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import (
    TARGETS,
    Floats,
    Memory,
    compile_for,
    device,
    graph_of,
    outputs,
    plain_rows,
    same_words,
    target,
)
from support.golden import check_golden
from support.gpu_inputs import FLAVOURS, activations
from support.tiny_encoders import CLS, CTX, ENCODERS, MEAN, RANK, VOCAB, tiny_encoder
from support.tiny_models import tiny_model

from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import CpuTarget, cpu_target
from kinetic.errors import ContextError, InternalError
from kinetic.families import build
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.ir.verify import verify
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine, Work

ROWS = 70


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


# ---- ops alone -----------------------------------------------------------------------------


def row_ops(width: int) -> Graph:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (ROWS, width)), name="x")
    w, bias = b.declare("w", "F32", (width,)), b.declare("bias", "F32", (width,))
    row, table = b.declare("row", "F32", (1, width)), b.declare("table", "F16", (ROWS, width))
    return graph_of(
        {
            "norm": b.op("layer_norm", x, w, bias, name="norm", eps=1e-12),
            "norm_plain": b.op("layer_norm", x, w, name="norm_plain", eps=0.05),
            "added": b.op("add_row", x, row, name="added"),
            "gelu": b.op("gelu_erf", x, name="gelu"),
            "tanh": b.op("tanh", x, name="tanh"),
            "placed": b.op("embed_positions", table, name="placed"),
            "wanted mean": b.op("pool", x, kind="mean", name="mean"),
            "wanted first": b.op("pool", x, kind="first", name="first"),
        }
    )


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("width", [32, 96, 256])
@pytest.mark.parametrize("name", TARGETS)
def test_row_ops_are_the_references(name: str, width: int, flavour: str, objects: Path) -> None:
    rng = np.random.default_rng([width, FLAVOURS.index(flavour)])
    memory = Memory()
    memory.put_floats("x", activations(rng, ROWS, width, flavour))
    for weight, shape in (("w", (width,)), ("bias", (width,)), ("row", (1, width))):
        memory.put_floats(weight, rng.standard_normal(shape))
    half = rng.standard_normal((ROWS, width)).astype(np.float16)
    memory.put("table", "F16", (ROWS, width), half.view(np.uint8))
    graph = row_ops(width)
    program = compile_for(name, graph, objects, max_rows=ROWS)
    assert program.whole_texts and program.n_positions == ROWS
    for count, threads in ((1, 3), (7, 2), (ROWS, 3)):
        step = rows(np.arange(count), wanted="last")
        with np.errstate(all="ignore"):
            expected = Reference(graph, memory.weight).step(step)
        with device(program, memory, threads=threads, n_ctx=ROWS) as cpu:
            got = outputs(cpu, plain_rows(np.arange(count), wanted=[count - 1]))
        assert [k for k in expected if not same_words(got[k], expected[k])] == []


@pytest.mark.parametrize("window", [None, 2, 9, 64, 700])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("name", TARGETS)
def test_attention_over_a_text_is_the_references(
    name: str, kv_type: str, window: int | None, objects: Path
) -> None:
    """Texts of less than a tile, of several, and of more than a segment."""
    b, heads, width, longest = Builder(), 4, 16, 600
    q, k, v = (
        b.split_heads(
            b.embed(b.tokens(), b.declare(n, "F32", (longest, h * width)), name=f"e{n}"), h, name=n
        )
        for n, h in (("q", heads), ("k", 2), ("v", 2))
    )
    a = b.op("text_attention", q, k, v, name="a", scale=0.25, window=window, cache="c")
    graph = graph_of({"a": b.merge_heads(a)}, {"c": CacheSpec("attention", 2, width, width)})
    verify(graph)
    rng, memory = np.random.default_rng(5), Memory()
    for weight, h in (("q", heads), ("k", 2), ("v", 2)):
        memory.put_floats(weight, rng.standard_normal((longest, h * width)))
    program = compile_for(name, graph, objects, max_rows=longest, kv_type=kv_type)
    for count, threads in ((1, 2), (65, 1), (longest if window in (None, 64) else 130, 3)):
        expected = Reference(graph, memory.weight, kv_type).step(rows(np.arange(count)))["a"]
        with device(program, memory, threads=threads, n_ctx=longest) as cpu:
            got = outputs(cpu, plain_rows(np.arange(count)))["a"]
        assert same_words(got, expected)


def test_a_window_is_as_wide_on_both_sides() -> None:
    """Row 5 of 11 with a window of 4 sees 3 to 7: others' values do not matter."""
    b = Builder()
    x = b.split_heads(b.embed(b.tokens(), b.declare("x", "F32", (11, 8)), name="e"), 1, name="x")
    a = b.op("text_attention", x, x, x, name="a", scale=1.0, window=4, cache="c")
    graph = graph_of({"a": b.merge_heads(a)}, {"c": CacheSpec("attention", 1, 8, 8)})
    values = np.random.default_rng(0).standard_normal((11, 8)).astype(np.float32)

    def row_5(changed: int | None) -> bytes:
        memory, table = Memory(), values.copy()
        if changed is not None:
            table[changed] += 1
        memory.put_floats("x", table)
        out = Reference(graph, memory.weight).step(rows(np.arange(11)))["a"]
        return out[5].tobytes()

    moved = [i for i in range(11) if row_5(i) != row_5(None)]
    assert moved == [3, 4, 5, 6, 7]


# ---- whole models --------------------------------------------------------------------------

MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "bert": ("bert", {}),
    "bert cls F16": ("bert", {"pooling": CLS, "formats": "F16"}),
    "bert rank Q8_0": ("bert", {"pooling": RANK, "formats": "Q8_0"}),
    "nomic-bert Q4_0": ("nomic-bert", {"formats": "Q4_0"}),
    "gemma-embedding": ("gemma-embedding", {}),
    "gemma-embedding dense Q8_0": ("gemma-embedding", {"dense": True, "formats": "Q8_0"}),
}
SMALL = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": VOCAB, "formats": "Q8_0"}
TEXTS = [np.random.default_rng(n).integers(0, VOCAB, n).tolist() for n in (1, 17, 70, 5, 34)]


def write(label: str, folder: Path) -> Path:
    path = folder / f"{label}.gguf"
    if label.startswith("qwen3"):
        pooling = {"last": 3, "mean": MEAN}[label.split()[1]]
        return tiny_model("qwen3", path, metadata={"qwen3.pooling_type": pooling}, **SMALL)
    arch, options = MODELS[label]
    return tiny_encoder(arch, path, **options)  # type: ignore[arg-type]


LABELS = (*MODELS, "qwen3 last", "qwen3 mean")


@contextmanager
def engine(path: Path, chosen: CpuTarget, objects: Path, threads: int = 2) -> Iterator[Engine]:
    with GGUFFile.open(path) as file:
        program = compile_graph(build(file), chosen, max_rows=CTX, object_cache=objects)
        pages = 2 * len(TEXTS)
        cpu = CpuDevice(program, file, threads=threads, n_ctx=CTX, n_pages=pages)
        try:
            yield Engine(cpu, CTX, pages)
        finally:
            cpu.close()


def run(made: Engine, texts: list[list[int]]) -> list[Floats]:
    (output,) = made.device.program.outputs
    sequences = [made.new_sequence() for _ in texts]
    try:
        work = [Work(s, ids, 1) for s, ids in zip(sequences, texts, strict=True)]
        return [rows[0].copy() for rows in made.step(work, output)]
    finally:
        for sequence in sequences:
            sequence.close()


def expected(path: Path) -> list[Floats]:
    with GGUFFile.open(path) as file:
        graph = build(file)
        verify(graph)
        found = [Reference(graph, weights_of(file)).step(rows(ids, wanted="last")) for ids in TEXTS]
        return [next(iter(f.values()))[0] for f in found]


@pytest.mark.parametrize("label", LABELS)
def test_models_give_the_references_words_in_any_batch(
    label: str, tmp_path: Path, objects: Path
) -> None:
    path = write(label, tmp_path)
    alone = expected(path)
    for name in ("scalar", "maddubs"):
        with engine(path, target(name), objects) as made:
            for i, ids in enumerate(TEXTS):
                assert same_words(run(made, [ids])[0], alone[i])
            check_any_batch(made, alone)


def check_any_batch(made: Engine, alone: list[Floats]) -> None:
    """Texts together have the words that they have alone."""

    @settings(max_examples=8, deadline=None)
    @given(order=st.permutations(range(len(TEXTS))), count=st.integers(1, 5))
    def check(order: list[int], count: int) -> None:
        chosen = order[:count]
        if sum(len(TEXTS[i]) for i in chosen) <= CTX:
            for i, got in zip(chosen, run(made, [TEXTS[i] for i in chosen]), strict=True):
                assert same_words(got, alone[i])

    check()


def test_words_are_the_frozen_ones(tmp_path: Path, golden_dir: Path) -> None:
    """A word that changes is a change of `kinetic-arith-1`."""
    found = {}
    for label in LABELS:
        vectors = np.concatenate(expected(write(label, tmp_path)))
        assert np.isfinite(vectors).all() and vectors.std() > 0.05
        found[label] = blake3(vectors.tobytes()).hexdigest()[:32]
    check_golden(golden_dir / "logits" / "encoders.json", json.dumps(found, indent=1) + "\n")


def test_a_text_is_run_whole_and_within_its_positions(tmp_path: Path, objects: Path) -> None:
    path = write("bert", tmp_path)
    with engine(path, cpu_target(), objects) as made:
        sequence = made.new_sequence()
        made.step([Work(sequence, [1, 2, 3], 1)], "embedding")
        with pytest.raises(InternalError, match="takes whole texts"):
            made.step([Work(sequence, [4], 1)], "embedding")
    with GGUFFile.open(path) as file:
        program = compile_graph(build(file), cpu_target(), object_cache=objects)
        with pytest.raises(ContextError, match=f"of 129 tokens is more than the {CTX} positions"):
            CpuDevice(program, file, threads=1, n_ctx=CTX + 1, n_pages=4)


# ---- against another engine -----------------------------------------------------------------

LIMITS = {"bert-cls": 5e-3, "bert-mean": 5e-3, "bert-rerank": 1e-3}
"""llama.cpp has the tanh form of GELU where BERT has the exact one; others are F32's rounding."""
GOLDEN = (
    *LIMITS,
    "nomic-bert",
    "gemma-embedding",
    "gemma-embedding-dense",
    "qwen3-embedding",
    "qwen3-reranker",
)


@pytest.mark.parametrize("name", GOLDEN)
def test_vectors_agree_with_llama_cpp(shared_dir: Path, name: str) -> None:
    from kinetic.ir.ops.arithmetic import softmax

    golden = np.load(shared_dir / "golden" / "logits" / f"{name}.npz")
    with GGUFFile.open(shared_dir / "golden" / "models" / f"{name}.gguf") as file:
        reference = Reference(build(file), weights_of(file), "f32")
        for i in range(3):
            reference.forget(0)
            want = golden.get(f"pooled_exactgelu_{i}", golden[f"pooled_{i}"])
            (got,) = reference.step(rows(golden[f"tokens_{i}"], wanted="last")).values()
            got = softmax(got)[0] if name == "qwen3-reranker" else got[0]
            assert np.abs(got - want).max() < LIMITS.get(name, 5e-5)
            assert got @ want > 0.9999 * np.linalg.norm(got) * np.linalg.norm(want)


def test_every_encoder_is_tested_here() -> None:
    from kinetic.families import ENCODERS as KNOWN

    assert set(ENCODERS) == set(KNOWN) == {arch for arch, _ in MODELS.values()}
