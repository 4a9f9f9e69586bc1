"""What each family builds, and what it says to a file that it cannot run."""

from __future__ import annotations

import tracemalloc
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import damaged
from support.gguf_writer import write_gguf
from support.golden import check_golden
from support.tiny_models import ARCHS, Dims, hyper, tensor_shapes, tiny_model

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.families import ENCODERS, SUPPORTED, build
from kinetic.ir.ggml_types import GGML_TYPES
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph
from kinetic.ir.text import parse
from kinetic.ir.verify import verify

VARIANTS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "llama": ("llama", {}, {}),
    "llama-fused-bias-freqs": (
        "llama",
        {"fused_qkv": True, "bias": True, "rope_freqs": True, "tied": True},
        {},
    ),
    "llama-experts": ("llama", {"n_experts": 3}, {}),
    "llama-yarn": (
        "llama",
        {},
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 256,
        },
    ),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "gemma3": ("gemma3", {"n_layers": 3, "softcap": 30.0}, {}),
    "qwen3moe": ("qwen3moe", {}, {}),
    "granite": ("granite", {}, {}),
    "granitemoe": ("granitemoe", {}, {}),
    "ernie4_5": ("ernie4_5", {}, {}),
    "ernie4_5-moe": ("ernie4_5-moe", {"n_layers": 2}, {}),
    "olmo2": ("olmo2", {"n_layers": 2}, {}),
    "exaone4": ("exaone4", {"rope_freqs": True}, {}),
    "hunyuan-dense": ("hunyuan-dense", {}, {"hunyuan-dense.rope.scaling.alpha": 1000.0}),
    "lfm2": ("lfm2", {"n_layers": 2}, {"lfm2.attention.sliding_window": 32}),
    "lfm2moe": ("lfm2moe", {"n_layers": 2}, {}),
    "lfm3": ("lfm3", {"n_layers": 2}, {}),
    "granitehybrid": ("granitehybrid", {"n_layers": 2}, {}),
    "granitehybrid-experts": ("granitehybrid", {"n_experts": 3}, {}),
    "falcon-h1": ("falcon-h1", {}, {}),
    "qwen35": ("qwen35", {"n_layers": 2}, {}),
    "qwen35moe": ("qwen35moe", {"n_layers": 2}, {}),
    "gemma4": ("gemma4", {}, {}),
    "smollm3": ("smollm3", {"n_layers": 4}, {}),
    "phi3": ("phi3", {}, {"phi3.attention.sliding_window": 32}),
    "gpt-oss": ("gpt-oss", {"n_layers": 2}, {}),
    "mistral3": ("mistral3", {}, {}),
    "glm4": ("glm4", {}, {}),
    "qwen3vl": ("qwen3vl", {}, {}),
    "qwen2moe": ("qwen2moe", {}, {}),
}


def tiny(tmp_path, arch: str, metadata=None, **dims) -> Graph:
    path = tiny_model(arch, tmp_path / "m.gguf", metadata=metadata, **({"n_layers": 1} | dims))
    return build(GGUFFile.open(path))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_graph_of_each_family(tmp_path, golden_dir, name):
    arch, dims, metadata = VARIANTS[name]
    graph = tiny(tmp_path, arch, metadata, **dims)
    verify(graph)
    assert parse(str(graph)).same_as(graph)
    check_golden(golden_dir / "ir" / f"{name}.ir", str(graph))


def test_every_supported_architecture_is_tested():
    assert set(SUPPORTED) == {*ARCHS, *ENCODERS}


def test_meta_tells_the_runtime_what_it_needs(tmp_path):
    meta = tiny(tmp_path, "gemma3", n_layers=4, pattern=3, window=9).meta
    assert (meta.arch, meta.n_ctx_train, meta.n_vocab) == ("gemma3", 1024, 320)
    assert (meta.n_layers, meta.n_embd, meta.n_heads, meta.n_kv_heads) == (4, 256, 4, 2)
    assert [c.window for c in meta.caches.values()] == [9, 9, None, 9]
    assert meta.caches["blk.2"] == CacheSpec("attention", 2, 64, 64)


def test_gemma3_layers_may_be_listed(tmp_path):
    key = "gemma3.attention.sliding_window_pattern"
    graph = tiny(tmp_path, "gemma3", {key: np.array([False, True])}, n_layers=2)
    assert [c.window for c in graph.meta.caches.values()] == [None, 16]
    bases = [n.get("base", float) for n in graph if n.op == "rope" and n.name.endswith("q_rope")]
    assert bases == [1e6, 1e4]
    with pytest.raises(ModelFileError, match="expected 3 entries"):
        tiny(tmp_path, "gemma3", {key: np.array([False, True])}, n_layers=3)


def test_gemma3_defaults(tmp_path):
    graph = tiny(tmp_path, "gemma3", {"gemma3.attention.sliding_window_pattern": None}, n_layers=7)
    assert [c.window for c in graph.meta.caches.values()] == [16] * 5 + [None, 16]


def test_gemma3_27b_scales_by_model_width(tmp_path):
    dims = {"n_embd": 64, "n_ff": 32, "head_dim": 32, "n_heads": 4, "formats": "Q8_0"}
    for layers, width in ((62, 16), (2, 32)):
        graph = tiny(tmp_path, "gemma3", n_layers=layers, **dims)
        scales = {n.get("scale", float) for n in graph if n.op == "attention"}
        assert scales == {1 / sqrt(width)}


def test_exaone4_slides_only_with_64_layers(tmp_path):
    key, dims = "exaone4.attention.sliding_window", {"n_embd": 32, "n_ff": 32, "head_dim": 8}
    dims |= {"formats": "F32", "n_vocab": 288}
    graph = tiny(tmp_path, "exaone4", {key: 9}, n_layers=64, **dims)
    assert [c.window for c in graph.meta.caches.values()] == [9, 9, 9, None] * 16
    assert sum(n.op == "rope" for n in graph) == 2 * 48
    graph = tiny(tmp_path, "exaone4", {key: 9}, n_layers=4, **dims)
    assert {c.window for c in graph.meta.caches.values()} == {None}
    assert sum(n.op == "rope" for n in graph) == 2 * 4
    wrong = {f"{key}_pattern": np.array([True, False] * 32)}
    with pytest.raises(ModelFileError, match="expected each 4th layer full"):
        tiny(tmp_path, "exaone4", wrong, n_layers=64, **dims)


def test_granite_multipliers_may_be_left_out(tmp_path):
    """A missing one changes nothing; only the logits' divisor must be there."""
    names = ("embedding_scale", "residual_scale", "attention.scale")
    none = {f"granite.{name}": None for name in names}
    graph = tiny(tmp_path, "granite", none | {"granite.rope.scaling.finetuned": False})
    assert [n.get("value", float) for n in graph if n.op == "scale"] == [1 / 1.5]
    assert [n.get("scale", float) for n in graph if n.op == "attention"] == [1 / 8]
    assert not any(n.op == "rope" for n in graph)
    for value, error in ((None, "logit_scale is missing"), (0.0, "a positive number")):
        with pytest.raises(ModelFileError, match=error):
            tiny(tmp_path, "granite", {"granite.logit_scale": value})


def test_ernie_layers_that_are_mixtures(tmp_path):
    graph = tiny(tmp_path, "ernie4_5-moe", n_layers=3)
    assert sum(n.op == "experts" for n in graph) == 2
    step = {"ernie4_5-moe.interleave_moe_layer_step": 2, "ernie4_5-moe.block_count": 2}
    graph = tiny(tmp_path, "ernie4_5-moe", step, n_layers=2)
    assert sum(n.op == "experts" for n in graph) == 1


@pytest.mark.parametrize(
    ("arch", "key", "value"),
    [
        ("qwen3moe", "expert_weights_scale", 2.5),
        ("ernie4_5-moe", "expert_gating_func", 2),
        ("olmo2", "rope.freq_base_swa", 5e5),
        ("hunyuan-dense", "attention.sliding_window", 64),
    ],
)
def test_what_a_family_lacks_is_named(tmp_path, arch, key, value):
    with pytest.raises(UnsupportedError, match=key):
        tiny(tmp_path, arch, {f"{arch}.{key}": value})


def test_head_width_defaults_to_the_model_width_over_the_heads(tmp_path):
    none = {"qwen2.attention.key_length": None, "qwen2.attention.value_length": None}
    graph = tiny(tmp_path, "qwen2", none | {"qwen2.rope.dimension_count": None})
    assert graph.meta.head_dim == 64
    assert {n.get("rot", int) for n in graph if n.op == "rope"} == {64}


def test_numbers_print_as_they_were_meant(tmp_path):
    """A file holds 1e-05 as a binary32; the graph says 1e-05, which rounds to the same."""
    graph = tiny(tmp_path, "llama", {"llama.attention.layer_norm_rms_epsilon": 1e-5})
    assert {n.get("eps", float) for n in graph if n.op == "rms_norm"} == {1e-5}


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UnsupportedError, "architecture mamba is not supp"),
        ({"llama.attention.clamp_kqv": 3.0}, UnsupportedError, "attention.clamp_kqv is not known"),
        ({"llama.pooling_type": 9}, ModelFileError, "pooling_type is 9, expected a number from"),
        ({"llama.block_count": None}, ModelFileError, "block_count is missing"),
        ({"llama.block_count": 0}, ModelFileError, "block_count is 0, expected a 32-bit count"),
        ({"llama.block_count": "2"}, ModelFileError, "block_count is string, not an integer"),
        ({"llama.block_count": 2}, ModelFileError, r"blk.1.attn_norm.weight is missing"),
        (
            {"llama.attention.head_count_kv": [2, 1]},
            UnsupportedError,
            "head_count_kv differs from layer to layer",
        ),
        ({"llama.attention.head_count_kv": 3}, ModelFileError, "expected a divisor of 4"),
        (
            {"llama.attention.key_length": 128},
            ModelFileError,
            r"attn_q.weight has shape \[256, 256\], but the metadata asks for \[512, 256\]",
        ),
        ({"llama.rope.dimension_count": 7}, ModelFileError, "expected an even number up to 64"),
        ({"llama.block_count": 2147483647}, ModelFileError, "block_count is 2147483647, expected"),
        ({"llama.attention.head_count": 1 << 20}, ModelFileError, "head_count is 1048576, exp"),
        ({"llama.attention.key_length": 1 << 30}, ModelFileError, "key_length is 1073741824, exp"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, ModelFileError, "a positive number"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, ModelFileError, "a positive number"),
        ({"llama.rope.scaling.attn_factor": 0.0}, ModelFileError, "expected a positive number"),
        ({"llama.rope.freq_base": -1.0}, ModelFileError, "expected a number above 1"),
        ({"llama.rope.freq_base": 1.0}, ModelFileError, "expected a number above 1"),
        ({"llama.rope.freq_base": float("nan")}, ModelFileError, "expected a finite number"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedError, "longrope is not supported"),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0},
            ModelFileError,
            "scaling.factor is 0.0",
        ),
        ({"llama.expert_count": 4}, ModelFileError, "expert_used_count is missing, expected"),
        (
            {"llama.expert_count": 4, "llama.expert_used_count": 2},
            ModelFileError,
            "ffn_gate_inp.weight is missing",
        ),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(tmp_path, metadata, error, message):
    with pytest.raises(error, match=message) as found:
        tiny(tmp_path, "llama", metadata)
    text = str(found.value)
    assert text.count("\n") == 0 and "m.gguf" in text


def written(tmp_path, change) -> Graph:
    """A qwen3 file after `change(shapes)`, its weights zeros."""
    size = Dims(n_layers=1, n_embd=64, n_ff=64, head_dim=16, n_vocab=288)
    shapes = dict(tensor_shapes("qwen3", size))
    types = change(shapes) or {}
    tensors = {}
    for name, shape in shapes.items():
        type_id, nbytes = types.get(name, (0, 4 * int(np.prod(shape))))
        tensors[name] = (shape, type_id, bytes(nbytes))
    path = write_gguf(tmp_path / "m.gguf", hyper("qwen3", size), tensors)
    return build(GGUFFile.open(path))


def test_a_tensor_that_nobody_used_is_refused(tmp_path):
    def change(shapes):
        shapes["blk.0.attn_sinks.weight"] = (4,)

    with pytest.raises(UnsupportedError, match=r"does not know how to use: blk.0.attn_sinks"):
        written(tmp_path, change)
    with pytest.raises(UnsupportedError, match=r"use: blk.1.a0, .* and 3 more"):
        written(tmp_path, lambda shapes: shapes.update({f"blk.1.a{i}": (4,) for i in range(11)}))


def test_a_missing_tensor_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"blk.0.ffn_up.weight is missing; .*\[64, 64\]"):
        written(tmp_path, lambda shapes: shapes.pop("blk.0.ffn_up.weight") and None)
    with pytest.raises(ModelFileError, match=r"token_embd.weight is missing"):
        written(tmp_path, lambda shapes: shapes.pop("token_embd.weight") and None)


def test_a_wrong_shape_says_expected_and_got(tmp_path):
    with pytest.raises(ModelFileError, match=r"shape \[64, 32\], .* asks for \[64, 64\]"):
        written(tmp_path, lambda shapes: shapes.update({"blk.0.ffn_up.weight": (64, 32)}))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_rope_factors_that_nothing_can_be_divided_by_are_named(tmp_path, value):
    size = Dims(n_layers=1, n_embd=64, n_ff=64, head_dim=16, n_vocab=288, rope_freqs=True)
    tensors = {
        name: (shape, 0, np.full(shape, value, "<f4").tobytes())
        for name, shape in tensor_shapes("llama", size).items()
    }
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", hyper("llama", size), tensors))
    with pytest.raises(ModelFileError, match=f"rope_freqs.weight holds {value}, expected numbers"):
        build(file)


def test_a_format_that_is_not_there_is_named(tmp_path):
    def change(shapes):
        return {"blk.0.ffn_up.weight": (28, 64 * 64 * 8)}  # F64

    with pytest.raises(UnsupportedError, match=r"ffn_up.weight is stored as F64"):
        written(tmp_path, change)


def test_a_norm_that_is_not_plain_floats_is_refused(tmp_path):
    def change(shapes):
        return {"blk.0.attn_norm.weight": (8, 64 // 32 * 34)}  # Q8_0

    with pytest.raises(UnsupportedError, match=r"blk.0.attn_norm.weight is stored as Q8_0, but a"):
        written(tmp_path, change)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_damaged_layer_count_fails_at_once(tmp_path, arch):
    """Not after a list of two thousand million layers."""
    path = tiny_model(arch, tmp_path / "m.gguf", metadata={f"{arch}.block_count": 2**31 - 1})
    file = GGUFFile.open(path)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=f"{arch}.block_count is 2147483647, expected no"):
            build(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("arch", "dims", "key", "value"),
    [
        ("gemma3", {}, "rope.freq_base_swa", 0.0),
        ("gemma3", {}, "final_logit_softcapping", -30.0),
        ("gemma3", {}, "final_logit_softcapping", 1e-45),
        ("gemma3", {"n_layers": 62, "n_heads": 64}, "attention.head_count", 64),
        ("granite", {}, "logit_scale", 1e-45),
        ("granite", {}, "attention.scale", -1.0),
        ("hunyuan-dense", {}, "rope.scaling.alpha", 3e38),
        ("olmo2", {}, "attention.sliding_window_pattern", np.array([float("nan")], np.float32)),
        ("exaone4", {}, "attention.sliding_window_pattern", 0),
    ],
)
def test_a_damaged_number_of_a_family_is_named(tmp_path, arch, dims, key, value):
    size = {"n_embd": 32, "n_ff": 32, "head_dim": 4, "formats": "F32", "n_vocab": 288}
    with pytest.raises(ModelFileError, match=f"{arch}.{key} is "):
        tiny(tmp_path, arch, {f"{arch}.{key}": value}, **(size | dims))


numbers = (
    st.integers(-(2**40), 2**40)
    | st.integers(-2, 9)
    | st.sampled_from([2**n + d for n in (5, 8, 16, 24, 31, 32, 63) for d in (-1, 0)])
    | st.sampled_from(
        [0.0, -0.0, 1e-45, 1e-38, 1.0, 3e38, float("nan"), float("inf"), np.float64(1e300)]
    )
    | st.floats(width=32)
    | st.text(max_size=5)
    | st.booleans()
    | st.lists(st.integers(0, 9), min_size=1, max_size=3)
)


RARE = (
    ".rope.scaling.type",
    ".rope.scaling.factor",
    ".rope.scaling.attn_factor",
    ".rope.scaling.original_context_length",
    ".rope.scaling.alpha",
    ".rope.freq_base_swa",
    ".expert_count",
    ".expert_used_count",
    ".expert_shared_count",
    ".final_logit_softcapping",
    ".attention.sliding_window",
    ".attention.sliding_window_pattern",
    ".attention.scale",
    ".logit_scale",
    ".ssm.state_size",
    ".ssm.inner_size",
    ".ssm.group_count",
    ".ssm.time_step_rank",
    ".ssm.conv_kernel",
    ".shortconv.l_cache",
    ".full_attention_interval",
    ".nextn_predict_layers",
    ".expert_gating_func",
    ".expert_feed_forward_length",
    ".expert_shared_feed_forward_length",
    ".leading_dense_block_count",
    ".interleave_moe_layer_step",
    ".attention.shared_kv_layers",
    ".attention.key_length_swa",
    ".attention.value_length_swa",
    ".attention.temperature_scale",
    ".rope.dimension_count_swa",
    ".rope.dimension_sections",
    ".embedding_length_per_layer_input",
    ".pooling_type",
)
"""Keys that only some families know."""


@settings(
    max_examples=200, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), arch=st.sampled_from(ARCHS))
def test_any_settings_build_or_fail_in_one_sentence(tmp_path, data, arch):
    size = Dims(n_layers=1, n_embd=32, n_ff=32, head_dim=8, n_vocab=288)
    keys = hyper(arch, size)
    for key in data.draw(st.lists(st.sampled_from([*keys, *(arch + k for k in RARE)]), max_size=3)):
        if key.endswith("scaling.type") and data.draw(st.booleans()):
            keys[key] = data.draw(st.sampled_from(["linear", "yarn", "none"]))
        else:
            keys[key] = data.draw(numbers)
    shapes = data.draw(damaged(tensor_shapes(arch, size)))
    types = {}
    for name in data.draw(st.lists(st.sampled_from([*shapes]), max_size=1)):
        types[name] = data.draw(st.sampled_from([0, 0, 1, 2, 8, 24, 26, 28, 30, 39]))
    tensors = {}
    for name, shape in shapes.items():
        kind = GGML_TYPES[types.get(name, 0)]
        if shape[-1] % kind.values:
            kind = GGML_TYPES[0]
        data = bytes(int(np.prod(shape)) // kind.values * kind.nbytes)
        if name.startswith("rope_f") and kind.id == 0:  # divisors
            data = np.full(shape, 2.0, "<f4").tobytes()
        tensors[name] = (shape, kind.id, data)
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", keys, tensors))
    try:
        verify(build(file))
    except (ModelFileError, UnsupportedError) as error:  # nothing else: it is the file's fault
        assert "\n" not in str(error)


def test_the_docs_show_qwen3_as_it_is():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "add-a-family.md").read_text(encoding="utf-8")
    shown = page.split("```python\n")[1].split("```")[0].split("\n", 1)[1]
    assert shown in (root / "families" / "qwen3.py").read_text(encoding="utf-8")
    assert all(f"`{arch}`" in page for arch in SUPPORTED)
