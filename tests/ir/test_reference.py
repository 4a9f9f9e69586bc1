"""The reference against another engine's golden logits, and against itself cut up differently."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import check_golden
from support.golden_models import EXACT
from support.tiny_models import ARCHS, FEW_FORMATS, FIRST, tiny_model

from kinetic.errors import InternalError
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph
from kinetic.ir.quant import FORMATS
from kinetic.ir.reference import Reference, Rows, rows, weights_of

SMALL = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 288}
"""Sizes for formats of 32-value blocks."""


def words(x: np.ndarray) -> list[int]:
    return np.ascontiguousarray(x).view(np.uint32).ravel().tolist()


def joined(*parts: Rows) -> Rows:
    fields = ("tokens", "sequences", "positions", "wanted")
    return Rows(*(np.concatenate([getattr(p, f) for p in parts]) for f in fields))


# ---- against llama.cpp ---------------------------------------------------------------------

# rms that llama.cpp's own quantized run is off the run on dequantized weights
QUANTIZED = {
    "q-llama-f16": 0.0015,
    "q-llama-bf16": 0.0119,
    "q-llama-q8_0": 0.0439,
    "q-llama-q6_k": 0.0639,
    "q-llama-q5_k": 0.0636,
    "q-llama-q5_0": 0.0436,
    "q-llama-q5_1": 0.0431,
    "q-llama-q4_k": 0.0667,
    "q-llama-q4_0": 0.0428,
    "q-llama-q4_1": 0.0461,
    "q-gemma3-q4_0": 0.0380,
    "q-gemma3-q5_k": 0.0562,
    "q-llamamoe-q4_0": 0.0464,
    "q-llamamoe-q4_k": 0.0646,
}


def load(shared_dir, name: str) -> tuple[Graph, GGUFFile, dict[str, np.ndarray]]:
    file = GGUFFile.open(shared_dir / "golden" / "models" / f"{name}.gguf")
    return build(file), file, dict(np.load(shared_dir / "golden" / "logits" / f"{name}.npz"))


@pytest.mark.parametrize("name", EXACT)
def test_f32_models_agree_with_llama_cpp(shared_dir, name):
    graph, file, golden = load(shared_dir, name)
    for i in range(3):
        expected = golden.get(f"logits_exactgelu_{i}", golden[f"logits_{i}"])
        step = rows(golden[f"tokens_{i}"])
        # A head's answer of the delta rule may be tiny before its norm: llama.cpp's own is 3e-5
        # from binary64 there.
        near = 1e-4 if name.startswith("qwen35") else 5e-5
        for kv_type, limit in (("f32", near), ("f16", 5e-2)):
            got = Reference(graph, weights_of(file), kv_type).step(step)["logits"]
            assert np.abs(got - expected).max() < limit


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_models_are_as_near_to_their_weights_as_llama_cpp(shared_dir, name):
    graph, file, golden = load(shared_dir, name)
    for i in range(3):
        got = Reference(graph, weights_of(file), "f32").step(rows(golden[f"tokens_{i}"]))["logits"]
        off = got.astype(np.float64) - golden[f"logits_f32_{i}"]
        assert np.sqrt((off**2).mean()) <= 2 * QUANTIZED[name]


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_each_layer_agrees_with_llama_cpp(shared_dir, name):
    graph, file, golden = load(shared_dir, name)
    limit = 5e-3 if name == "gemma3" else 5e-5  # layer_out has llama.cpp's table GELU
    seen = {}
    Reference(graph, weights_of(file), "f32").step(
        rows(golden["tokens_1"]), lambda node, value: seen.update({node.name: value})
    )
    for layer, expected in enumerate(golden["layer_out_1"]):
        got = seen[f"blk.{layer}.ffn_residual"]
        assert np.abs(got - expected).max() < limit * max(1, np.abs(expected).max())
    assert np.abs(seen["output_norm"] - golden["result_norm_1"]).max() < 2 * limit


# ---- against itself ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=ARCHS)
def model(request, tmp_path_factory) -> tuple[Graph, GGUFFile]:
    path = tmp_path_factory.mktemp("m") / f"{request.param}.gguf"
    formats = {"": "Q4_0", "attn_v": "Q8_0", "ffn_down": "F16", "ffn_up": "F32"}
    file = GGUFFile.open(tiny_model(request.param, path, formats=formats, **SMALL))
    return build(file), file


TOKENS = np.random.default_rng(7).integers(0, 288, 150)


@pytest.fixture(scope="module")
def whole(model) -> np.ndarray:
    graph, file = model
    return Reference(graph, weights_of(file)).step(rows(TOKENS))["logits"]


@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, 149), max_size=5))
def test_chunks_do_not_change_a_word(model, whole, cuts):
    graph, file = model
    reference = Reference(graph, weights_of(file))
    edges = [0, *sorted(set(cuts)), 150]
    parts = [reference.step(rows(TOKENS[a:b], start=a))["logits"] for a, b in pairwise(edges)]
    assert words(np.concatenate(parts)) == words(whole)


def test_neighbours_do_not_change_a_word(model, whole):
    graph, file = model
    reference = Reference(graph, weights_of(file))
    other = rows(TOKENS[::-1][:90], sequence=5)
    reference.step(joined(rows(TOKENS[:60]), other))
    step = joined(rows(TOKENS[90:], sequence=5, start=90), rows(TOKENS[60:], start=60))
    order = np.random.default_rng(0).permutation(len(step.tokens))
    mixed = Rows(*(getattr(step, f)[order] for f in ("tokens", "sequences", "positions", "wanted")))
    got = reference.step(mixed)["logits"]
    mine = mixed.sequences == 0
    assert words(got[mine]) == words(whole[mixed.positions[mine]])


def test_only_wanted_rows_come_out(model, whole):
    graph, file = model
    got = Reference(graph, weights_of(file)).step(rows(TOKENS, wanted="last"))["logits"]
    assert got.shape == (1, 288) and words(got[0]) == words(whole[-1])
    some = [i % 7 == 0 for i in range(150)]
    got = Reference(graph, weights_of(file)).step(rows(TOKENS, wanted=some))["logits"]
    assert words(got) == words(whole[::7])


def test_a_sequence_may_be_taken_back_and_forgotten(model, whole):
    graph, file = model
    reference = Reference(graph, weights_of(file))
    reference.step(rows(TOKENS[:100]))
    reference.step(rows(TOKENS[:20], start=100))  # a wrong draft, then the real rows
    got = reference.step(rows(TOKENS[100:], start=100))["logits"]
    assert words(got) == words(whole[100:])
    reference.forget(0)
    assert words(reference.step(rows(TOKENS))["logits"]) == words(whole)


def test_rows_that_cannot_be_are_refused(model):
    graph, file = model
    reference = Reference(graph, weights_of(file))
    with pytest.raises(InternalError, match=r"position 3 is (written before 0|run without)"):
        reference.step(rows([1], start=3))
    with pytest.raises(InternalError, match="same sequence and position"):
        reference.step(joined(rows([1]), rows([2])))


def test_the_kv_type_is_what_rounds(model, whole):
    graph, file = model
    wide = Reference(graph, weights_of(file), "f32").step(rows(TOKENS))["logits"]
    assert words(wide) != words(whole)
    # A router's near-tie may fall the other way and move a row of a mixture further.
    off = np.abs(wide - whole).max(axis=1)
    assert np.median(off) < 0.5 and (off >= 0.5).mean() < 0.3


# ---- frozen words --------------------------------------------------------------------------

FROZEN = [
    (arch, fmt)
    for arch in FIRST
    for fmt in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
] + [(arch, fmt) for arch in FIRST for fmt in ("Q4_K", "Q5_K", "Q6_K")]
FROZEN += [(arch, fmt) for arch in ARCHS if arch not in FIRST for fmt in FEW_FORMATS]
FROZEN += [("llama", fmt) for fmt in FORMATS if ("llama", fmt) not in FROZEN]


def test_the_words_of_tiny_models_are_frozen(tmp_path, golden_dir):
    """These hashes are the contract: a change of one is a change of its version."""
    found = {}
    for arch, fmt in FROZEN:
        size = SMALL if FORMATS[fmt].values <= 32 else {"n_vocab": 288}
        path = tiny_model(arch, tmp_path / "m.gguf", formats=fmt, n_layers=2, **size)
        with GGUFFile.open(path) as file:
            logits = Reference(build(file), weights_of(file)).step(rows(TOKENS[:80]))["logits"]
            assert np.isfinite(logits).all() and logits.std() > 0.5
            found[f"{arch} {fmt}"] = blake3(logits.tobytes()).hexdigest()[:32]
    check_golden(golden_dir / "ir" / "logits.json", json.dumps(found, indent=1) + "\n")
