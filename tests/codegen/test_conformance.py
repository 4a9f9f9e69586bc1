"""Whole models: every class gives the reference's words, however the rows are cut up.

`golden/logits/hashes.json` freezes the words of a tiny seeded model of each family and
format; `KINETIC_UPDATE_GOLDEN=1` rewrites it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import TARGETS, Floats, canonical, same_words, target
from support.golden import check_golden
from support.golden_models import EXACT
from support.tiny_models import ARCHS, FIRST, tiny_model

from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import CpuTarget, cpu_target
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.quant import FORMATS
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine, Work

SMALL = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 288}
"""Sizes for formats of 32-value blocks."""
MIXES: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "blocks of 32": (
        {
            "": "Q4_0",
            "attn_q": "Q4_1",
            "attn_k": "Q5_0",
            "attn_v": "Q8_0",
            "attn_output": "BF16",
            "ffn_gate": "Q5_1",
            "ffn_up": "F32",
            "ffn_down": "F16",
        },
        SMALL,
    ),
    "blocks of 256": (
        {"": "Q4_K", "attn_q": "Q5_K", "attn_k": "BF16", "attn_v": "Q6_K", "ffn_down": "Q6_K"},
        {},
    ),
}
CTX = 1024
TOKENS = np.random.default_rng(7).integers(0, 288, 150)


@contextmanager
def engine(
    path: Path,
    chosen: CpuTarget,
    objects: Path | None,
    *,
    kv_type: str = "f16",
    threads: int = 2,
    sequences: int = 1,
) -> Iterator[Engine]:
    """A model file on the CPU; outputs of all rows of a step may be wanted."""
    with GGUFFile.open(path) as file:
        program = compile_graph(
            build(file),
            chosen,
            kv_type=kv_type,
            max_rows=128,
            max_outputs=128,
            object_cache=objects,
        )
        pages = Engine.pages_for(CTX, sequences)
        cpu = CpuDevice(program, file, threads=threads, n_ctx=CTX, n_pages=pages)
        try:
            yield Engine(cpu, CTX, pages)
        finally:
            cpu.close()


def all_rows(run: Engine, tokens: list[int]) -> Floats:
    """Logits after each token of a new sequence, run as one batch."""
    sequence = run.new_sequence()
    (logits,) = run.step([Work(sequence, tokens, len(tokens))])
    sequence.close()
    return logits.copy()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], Path]:
    """A tiny model of each family in each mix."""
    folder = tmp_path_factory.mktemp("models")
    made = {}
    for arch in ARCHS:
        for mix, (formats, size) in MIXES.items():
            path = folder / f"{arch} {mix}.gguf"
            made[arch, mix] = tiny_model(arch, path, formats=formats, **size)
    return made


@functools.cache
def reference_logits(path: Path, kv_type: str) -> Floats:
    with GGUFFile.open(path) as file:
        step = rows(TOKENS[:70])
        return Reference(build(file), weights_of(file), kv_type).step(step)["logits"]


# -- every class -----------------------------------------------------------------------------


CLASSES = [
    (name, arch, mix, kv_type)
    for arch in FIRST
    for mix, kv_type in [*((m, "f16") for m in MIXES), ("blocks of 32", "f32")]
    for name in TARGETS
] + [
    (name, arch, "blocks of 32", "f16")
    for arch in ARCHS
    if arch not in FIRST
    for name in ("scalar", "maddubs")
]
"""Later families are of the same kernels: two classes and one mix show that they fit."""


@pytest.mark.parametrize("name, arch, mix, kv_type", CLASSES)
def test_models_give_the_references_words(
    name: str,
    arch: str,
    mix: str,
    kv_type: str,
    models: Mapping[tuple[str, str], Path],
    objects: Path,
) -> None:
    path = models[arch, mix]
    expected = reference_logits(path, kv_type)
    assert np.isfinite(expected).all() and expected.std() > 0.5
    with engine(path, target(name), objects, kv_type=kv_type) as run:
        assert same_words(all_rows(run, TOKENS[:70].tolist()), expected)
        sequence = run.new_sequence()
        for at in range(10):
            assert same_words(run.decode(sequence, int(TOKENS[at])), expected[at])


VARIANTS: dict[str, dict[str, object]] = {
    "llama fused freqs": {"arch": "llama", "fused_qkv": True, "rope_freqs": True, "tied": True},
    "llama bias": {"arch": "llama", "bias": True},
    "gemma3 softcap": {"arch": "gemma3", "softcap": 20.0, "window": 7, "pattern": 3},
    "qwen3 untied, one group": {"arch": "qwen3", "tied": False, "n_heads": 3, "n_kv_heads": 1},
    "odd vocabulary": {"arch": "qwen2", "n_vocab": 293},
    "llama experts": {"arch": "llama", "n_experts": 5, "n_experts_used": 2},
}


@pytest.mark.parametrize("label", VARIANTS)
def test_variants_give_the_references_words(label: str, tmp_path: Path, objects: Path) -> None:
    options = {**SMALL, "n_layers": 3, **VARIANTS[label]}
    arch = str(options.pop("arch"))
    path = tiny_model(arch, tmp_path / "m.gguf", formats=MIXES["blocks of 32"][0], **options)
    for name in ("scalar", "maddubs"):
        with engine(path, target(name), objects) as run:
            got = all_rows(run, TOKENS[:70].tolist())
        assert same_words(got, reference_logits(path, "f16"))


# -- frozen words ------------------------------------------------------------------------------


def test_words_are_the_frozen_ones(tmp_path: Path, golden_dir: Path, objects: Path) -> None:
    """This machine's best class; a word that changes is a change of `kinetic-arith-1`."""
    found = {}
    for label in json.loads((golden_dir / "ir" / "logits.json").read_text()):
        arch, fmt = label.split()
        size = {"n_vocab": 288} if FORMATS[fmt].values > 32 else SMALL
        path = tiny_model(arch, tmp_path / "m.gguf", formats=fmt, n_layers=2, **size)
        with engine(path, cpu_target(), objects) as run:
            logits = all_rows(run, TOKENS[:80].tolist())
        assert np.isfinite(logits).all() and logits.std() > 0.5
        found[label] = blake3(canonical(logits).tobytes()).hexdigest()[:32]
    assert {label.split()[1] for label in found} == set(FORMATS)
    check_golden(golden_dir / "logits" / "hashes.json", json.dumps(found, indent=1) + "\n")


def test_frozen_words_are_those_of_the_reference(golden_dir: Path) -> None:
    engines = json.loads((golden_dir / "logits" / "hashes.json").read_text())
    assert engines == json.loads((golden_dir / "ir" / "logits.json").read_text())


# -- batches, chunks, neighbours, threads ----------------------------------------------------


@pytest.fixture(scope="module", params=ARCHS)
def family(
    request: pytest.FixtureRequest, models: Mapping[tuple[str, str], Path], objects: Path
) -> Iterator[tuple[list[Engine], list[Floats], list[list[int]]]]:
    """Engines on 1, 2 and 3 threads, and what each sequence gives one token at a time."""
    path = models[request.param, "blocks of 32"]
    chosen = cpu_target()
    with (
        engine(path, chosen, objects, threads=1, sequences=4) as one,
        engine(path, chosen, objects, threads=2, sequences=4) as two,
        engine(path, chosen, objects, threads=3, sequences=4) as three,
    ):
        prompts = [np.random.default_rng(i).integers(0, 288, 140).tolist() for i in range(3)]
        alone = []
        for prompt in prompts:
            sequence = one.new_sequence()
            alone.append(np.stack([one.decode(sequence, t).copy() for t in prompt]))
            sequence.close()
        yield [one, two, three], alone, prompts


Family = tuple[list[Engine], list[Floats], list[list[int]]]


@settings(max_examples=20, deadline=None)
@given(
    threads=st.integers(1, 3),
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    ),
)
def test_neighbours_chunks_and_threads_do_not_change_a_word(
    family: Family, threads: int, steps: list[list[tuple[int, int]]]
) -> None:
    """Steps of pieces of three sequences, several of one sequence among them."""
    engines, alone, prompts = family
    run = engines[threads - 1]
    sequences = [run.new_sequence() for _ in prompts]
    try:
        for step in steps:
            batch, spans, room = [], [], 128
            at = [len(s) for s in sequences]
            for who, count in step:
                tokens = prompts[who][at[who] : at[who] + min(count, room)]
                if tokens:
                    want = len(tokens) if count % 2 else 1
                    batch.append(Work(sequences[who], tokens, want))
                    spans.append((who, at[who] + len(tokens) - want, want))
                    at[who], room = at[who] + len(tokens), room - len(tokens)
            if not batch:
                continue
            for logits, (who, first, want) in zip(run.step(batch), spans, strict=True):
                assert same_words(logits, alone[who][first : first + want])
    finally:
        for sequence in sequences:
            sequence.close()
    assert run.pages.available == Engine.pages_for(CTX, 4)


@settings(max_examples=10, deadline=None)
@given(
    threads=st.integers(1, 3),
    first=st.integers(0, 139),
    back=st.integers(0, 139),
    other=st.integers(1, 100),
)
def test_a_draft_taken_back_leaves_no_trace(
    family: Family, threads: int, first: int, back: int, other: int
) -> None:
    engines, alone, prompts = family
    run, sequence = engines[threads - 1], engines[threads - 1].new_sequence()
    try:
        if first:
            run.prefill(sequence, prompts[0][:first])
        back = min(back, first)
        if run.states is None:
            run.prefill(sequence, prompts[1][:other])  # not this sequence's tokens
            sequence.truncate(back)
        else:
            # A recurrent state goes back only to where it was kept.
            back, kept = first, run.checkpoint(sequence)
            run.prefill(sequence, prompts[1][:other])
            run.rollback(sequence, kept)
            run.release(kept)
        logits = run.prefill(sequence, prompts[0][back:])
        assert same_words(logits, alone[0][-1])
    finally:
        sequence.close()


def test_long_paths_give_the_references_words(
    models: Mapping[tuple[str, str], Path], objects: Path
) -> None:
    """Past a segment of 512 positions, in chunks, on threads that share segments."""
    tokens = np.random.default_rng(11).integers(0, 288, 600)
    path = models["gemma3", "blocks of 32"]
    with GGUFFile.open(path) as file:
        reference = Reference(build(file), weights_of(file))
        for a, b in pairwise([0, 300, 590]):
            reference.step(rows(tokens[a:b], start=a, wanted="last"))
        expected = reference.step(rows(tokens[590:], start=590))["logits"]
    for name, threads in (("scalar", 3), ("maddubs", 1)):
        with engine(path, target(name), objects, threads=threads) as run:
            sequence = run.new_sequence()
            run.prefill(sequence, tokens[:590].tolist())
            for i in range(10):
                assert same_words(run.decode(sequence, int(tokens[590 + i])), expected[i])


# -- against another engine --------------------------------------------------------------------

QUANTIZED = {
    "q-llama-f16": (0.0015, 9.1e-07),
    "q-llama-bf16": (0.0119, 6.5e-05),
    "q-llama-q8_0": (0.0439, 7.2e-04),
    "q-llama-q6_k": (0.0639, 1.7e-03),
    "q-llama-q5_k": (0.0636, 1.6e-03),
    "q-llama-q5_0": (0.0436, 6.8e-04),
    "q-llama-q5_1": (0.0431, 7.5e-04),
    "q-llama-q4_k": (0.0667, 1.7e-03),
    "q-llama-q4_0": (0.0428, 7.2e-04),
    "q-llama-q4_1": (0.0461, 7.3e-04),
    "q-gemma3-q4_0": (0.0380, 1.2e-05),
    "q-gemma3-q5_k": (0.0562, 3.1e-05),
    "q-llamamoe-q4_0": (0.0464, 9.2e-04),
    "q-llamamoe-q4_k": (0.0646, 1.4e-03),
    "q-llama-iq1_m": (0.0890, 2.7e-03),
    "q-llama-iq1_s": (0.0683, 1.9e-03),
    "q-llama-iq2_s": (0.0706, 2.0e-03),
    "q-llama-iq2_xs": (0.0689, 1.8e-03),
    "q-llama-iq2_xxs": (0.0701, 1.6e-03),
    "q-llama-iq3_s": (0.0700, 2.0e-03),
    "q-llama-iq3_xxs": (0.0679, 1.7e-03),
    "q-llama-iq4_nl": (0.0439, 7.9e-04),
    "q-llama-iq4_xs": (0.0640, 1.6e-03),
    "q-llama-mxfp4": (0.0411, 7.1e-04),
    "q-llama-nvfp4": (0.0425, 6.5e-04),
    "q-llama-q1_0": (0.0246, 2.5e-04),
    "q-llama-q2_0": (0.0479, 8.2e-04),
    "q-llama-q2_k": (0.0685, 1.7e-03),
    "q-llama-q3_k": (0.0632, 1.7e-03),
    "q-llama-tq1_0": (0.0687, 1.9e-03),
    "q-llama-tq2_0": (0.0687, 1.9e-03),
    "q-llamamoe-iq2_xxs": (0.0723, 2.2e-03),
    "q-llamamoe-iq4_xs": (0.1273, 6.0e-03),
    "q-llamamoe-mxfp4": (0.1193, 7.1e-03),
    "q-lfm2-q4_0": (0.0704, 1.9e-03),
    "q-lfm2-q6_k": (0.1098, 4.5e-03),
    "q-granitehybrid-q4_k": (0.1594, 7.4e-03),
    "q-qwen35-q8_0": (0.0836, 2.6e-03),
    "q-qwen35-q4_k": (0.1343, 7.4e-03),
    "q-qwen35-iq3_s": (0.1346, 6.9e-03),
}
"""How far llama.cpp's own quantized run is from the run on the same weights as F32: rms, mean
KL divergence."""


def golden_of(shared: Path, name: str) -> tuple[Path, Mapping[str, Floats]]:
    golden = shared / "golden"
    return golden / "models" / f"{name}.gguf", np.load(golden / "logits" / f"{name}.npz")


@pytest.mark.parametrize("name", EXACT)
def test_f32_models_agree_with_llama_cpp(shared_dir: Path, name: str, objects: Path) -> None:
    path, golden = golden_of(shared_dir, name)
    for kv_type, limit in (("f32", 3e-4), ("f16", 5e-2)):
        with engine(path, cpu_target(), objects, kv_type=kv_type) as run:
            for i in range(3):
                key = f"logits_exactgelu_{i}" if f"logits_exactgelu_{i}" in golden else None
                got = all_rows(run, golden[f"tokens_{i}"].tolist())
                assert np.abs(got - golden[key or f"logits_{i}"]).max() < limit


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_models_are_as_near_to_their_weights_as_llama_cpp(
    shared_dir: Path, name: str, objects: Path
) -> None:
    path, golden = golden_of(shared_dir, name)
    squares, divergence = [], []
    with engine(path, cpu_target(), objects, kv_type="f32") as run:
        for i in range(3):
            got = all_rows(run, golden[f"tokens_{i}"].tolist()).astype(np.float64)
            want = golden[f"logits_f32_{i}"].astype(np.float64)
            squares.append(((got - want) ** 2).ravel())
            p, q = log_softmax(want), log_softmax(got)
            divergence.append((np.exp(p) * (p - q)).sum(axis=-1))
    rms, kl = QUANTIZED[name]
    assert np.sqrt(np.concatenate(squares).mean()) <= 2 * rms
    assert np.concatenate(divergence).mean() <= 2 * kl


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
