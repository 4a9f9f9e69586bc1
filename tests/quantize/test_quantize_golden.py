"""The files and blocks that llama-quantize writes, byte for byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from kinetic.errors import UnsupportedError, UsageError
from kinetic.ir.gguf import GGUFFile, TensorInfo
from kinetic.quantize.encoders.compiled import WEIGHTED, WRITTEN_BY, encode
from kinetic.quantize.job import make_plan, run
from kinetic.quantize.mixture import Architecture, Wishes, choose, find_target

FILES = (
    *("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q3_K_M", "Q2_K", "IQ4_NL", "IQ4_XS", "BF16", "F32"),
)


@pytest.mark.parametrize("target", FILES)
def test_a_file_is_llama_quantizes(target: str, shared_dir: Path, tmp_path: Path) -> None:
    quants = shared_dir / "golden" / "quants"
    wanted = json.loads((quants / "llama_quantize.json").read_text())["outputs"][target]
    out = tmp_path / "out.gguf"
    with GGUFFile.open(quants / "lq-src-f16.gguf") as source:
        run(make_plan(source, find_target(target)), out, threads=2)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == wanted["sha256"]
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize("type_name", [name for name in WRITTEN_BY if name != "F16"])
def test_blocks_of_hard_inputs_are_ggmls(type_name: str, shared_dir: Path) -> None:
    quants = shared_dir / "golden" / "quants"
    inputs, golden = np.load(quants / "inputs.npz"), np.load(quants / f"{type_name.lower()}.npz")
    names = [n for n in golden.files if n.startswith("q_") and not n.endswith("_imat")]
    assert names
    for name in names:
        found = encode(type_name, inputs["in_" + name.removeprefix("q_")])
        assert (found == golden[name]).all(), name


@pytest.mark.parametrize("type_name", WEIGHTED)
def test_blocks_weighed_by_importance_are_ggmls(type_name: str, shared_dir: Path) -> None:
    quants = shared_dir / "golden" / "quants"
    inputs, golden = np.load(quants / "inputs.npz"), np.load(quants / f"{type_name.lower()}.npz")
    names = [n for n in golden.files if n.startswith("q_") and n.endswith("_imat")]
    assert names
    for name in names:
        values = inputs["in_" + name.removeprefix("q_").removesuffix("_imat")]
        assert (encode(type_name, values, inputs["imatrix"]) == golden[name]).all(), name


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"])
def test_rows_that_end_inside_a_tile(type_name: str) -> None:
    values = np.random.default_rng(0).normal(size=(3, 96)).astype(np.float32)
    whole = encode(type_name, values)
    alone = np.stack([encode(type_name, row[None])[0] for row in values])
    assert (whole == alone).all()


def test_f16_is_the_nearest_half() -> None:
    values = np.random.default_rng(1).normal(size=(2, 256)).astype(np.float32)
    values[0, :4] = [1e-8, 65520.0, -0.0, 6e-5]
    with np.errstate(over="ignore"):
        wanted = values.astype("<f2").view(np.uint8)
    assert (encode("F16", values) == wanted).all()


def test_extra_layers_count_as_layers() -> None:
    """QZ-03: four layers and one for prediction are five to the mixture."""
    parts = ("attn_v.weight", "ffn_down.weight")
    names = [f"blk.{i}.{part}" for i in range(5) for part in parts]
    tensors = [TensorInfo(n, (256, 256), 1, "F16", 0, 131072) for n in ["output.weight", *names]]
    arch = Architecture("qwen35", layers=5, heads=4, kv_heads=4, experts=0)
    found = {
        c.info.name: c.type_name for c in choose(tensors, arch, find_target("Q4_K_M"), Wishes())
    }
    assert found.pop("output.weight") == "Q6_K"
    raised = {name for name, type_name in found.items() if type_name == "Q6_K"}
    assert raised == {f"blk.{i}.{part}" for i in (2, 4) for part in parts}


def test_quantized_weights_are_refused_before_work(shared_dir: Path, tmp_path: Path) -> None:
    with GGUFFile.open(shared_dir / "golden/models/q-llama-q4_k.gguf") as source:
        with pytest.raises(UnsupportedError, match="--allow-requantize"):
            make_plan(source, find_target("Q8_0"))
        make_plan(source, find_target("Q8_0"), allow_requantize=True)


def test_a_target_that_needs_importance_is_refused() -> None:
    """QZ-01: said at once, not after hours."""
    with pytest.raises(UsageError, match="importance"):
        find_target("IQ2_M")


def test_a_run_that_breaks_off_leaves_nothing(shared_dir: Path, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with GGUFFile.open(shared_dir / "golden/quants/lq-src-f16.gguf") as source:
        plan = make_plan(source, find_target("Q8_0"))
        with pytest.raises(KeyboardInterrupt):
            run(plan, tmp_path / "out.gguf", threads=1, progress=stop)
    assert not list(tmp_path.iterdir())
