"""Blocks that predict a further token: the reference's words, and llama.cpp's logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cpu_device import Floats, plain_rows, same_words, target
from support.gguf_writer import write_gguf
from support.tiny_models import Dims, hyper, noise, random_weight, tiny_model

from kinetic.codegen.pipeline import compile_graph
from kinetic.errors import InternalError, ModelFileError
from kinetic.families import build, build_draft
from kinetic.ir.cpu_abi import CONTINUE, FRESH, NOT_KEPT
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph
from kinetic.ir.quant import FORMATS
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.ir.verify import verify
from kinetic.runtime.devices.cpu import CpuDevice

SMALL = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 288, "n_layers": 4}
"""The last of the layers, one with attention, is the block."""
TOKENS = np.random.default_rng(3).integers(0, 288, 40)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def with_block(arch: str, path: Path, *leave_out: str) -> Path:
    """A tiny model whose last layer predicts a further token, without some of its tensors."""
    keys = hyper(arch, Dims(**SMALL)) | {f"{arch}.nextn_predict_layers": 1}
    rng, d = np.random.default_rng(9), SMALL["n_embd"]
    with GGUFFile.open(tiny_model(arch, path, formats="Q8_0", **SMALL)) as file:
        tensors = {
            name: (info.shape, info.type_id, bytes(file.data(name)))
            for name, info in file.tensors.items()
        }
    for name in ("enorm", "hnorm", "shared_head_norm"):
        norm = (1 + 0.1 * noise(rng, (d,))).astype("<f4").tobytes()
        tensors[f"blk.3.nextn.{name}.weight"] = ((d,), 0, norm)
    joined = random_weight(FORMATS["Q8_0"], (d, 2 * d), rng, (2 * d) ** -0.5).tobytes()
    tensors["blk.3.nextn.eh_proj.weight"] = ((d, 2 * d), FORMATS["Q8_0"].ggml_id, joined)
    return write_gguf(path, keys, {k: v for k, v in tensors.items() if k not in leave_out})


def shifted(hidden: Floats) -> Floats:
    """The vector before each row: zeros at the first."""
    return np.concatenate([np.zeros((1, hidden.shape[1]), np.float32), hidden[:-1]])


def draft_of(file: GGUFFile) -> Graph:
    found = build_draft(file)
    assert found is not None
    return found


@contextmanager
def on_cpu(name: str, graph: Graph, file: GGUFFile, objects: Path, kv: str) -> Iterator[CpuDevice]:
    program = compile_graph(
        graph, target(name), kv_type=kv, max_rows=128, max_outputs=128, object_cache=objects
    )
    cpu = CpuDevice(program, file, threads=2, n_ctx=1024, n_pages=16)
    try:
        yield cpu
    finally:
        cpu.close()


def run(cpu: CpuDevice, tokens: np.ndarray, hidden: Floats | None, start: int = 0) -> Floats:
    """All logits of one sequence's rows; states are not kept."""
    count = len(tokens)
    step = replace(
        plain_rows(tokens, start=start, wanted=range(count)),
        hidden=hidden,
        state_in=np.array([FRESH] + [CONTINUE] * (count - 1), np.int32),
        state_out=np.full(count, NOT_KEPT, np.int32),
    )
    cpu.step(step)
    return cpu.output("logits", count).copy()


@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe"])
@pytest.mark.parametrize("name", ["scalar", "maddubs"])
def test_the_block_gives_the_references_words(
    arch: str, name: str, tmp_path: Path, objects: Path
) -> None:
    with GGUFFile.open(with_block(arch, tmp_path / "m.gguf")) as file:
        main, draft = build(file), draft_of(file)
        verify(main)
        verify(draft)
        trunk = Reference(main, weights_of(file)).step(rows(TOKENS))
        before = shifted(trunk["hidden"])
        expected = Reference(draft, weights_of(file)).step(replace(rows(TOKENS), hidden=before))
        with on_cpu(name, main, file, objects, "f16") as cpu:
            assert same_words(run(cpu, TOKENS, None), trunk["logits"])
            assert same_words(cpu.output("hidden", len(TOKENS)), trunk["hidden"])
        with on_cpu(name, draft, file, objects, "f16") as cpu:
            assert same_words(run(cpu, TOKENS, before), expected["logits"])
            assert same_words(cpu.output("hidden", len(TOKENS)), expected["hidden"])
            for at in range(30, 40):  # one by one after a prompt
                one = run(cpu, TOKENS[at : at + 1], before[at : at + 1], at)
                assert same_words(one, expected["logits"][at : at + 1])
            with pytest.raises(InternalError, match="without vectors of 64"):
                run(cpu, TOKENS, None)


def test_files_without_a_block_have_no_draft(tmp_path: Path) -> None:
    for arch in ("qwen35", "llama"):
        with GGUFFile.open(tiny_model(arch, tmp_path / "m.gguf")) as file:
            assert build_draft(file) is None
            assert "hidden" not in build(file).outputs


def test_a_block_must_be_whole(tmp_path: Path) -> None:
    for name in ("nextn.eh_proj", "nextn.hnorm", "attn_q", "ffn_down"):
        path = with_block("qwen35", tmp_path / "m.gguf", f"blk.3.{name}.weight")
        with GGUFFile.open(path) as file:
            for make in (build, build_draft):
                with pytest.raises(ModelFileError, match=f"blk.3.{name}.weight is missing"):
                    make(file)


def test_a_block_without_a_norm_of_its_own_has_the_models(tmp_path: Path) -> None:
    path = with_block("qwen35", tmp_path / "m.gguf", "blk.3.nextn.shared_head_norm.weight")
    with GGUFFile.open(path) as file:
        assert draft_of(file).outputs["hidden"].arg("w").name == "output_norm.weight"
        build(file)


@pytest.mark.parametrize("model", ["qwen35-mtp", "qwen35moe-mtp"])
def test_the_block_agrees_with_llama_cpp(shared_dir: Path, model: str, objects: Path) -> None:
    golden = np.load(shared_dir / "golden" / "logits" / f"{model}.npz")
    with GGUFFile.open(shared_dir / "golden" / "models" / f"{model}.gguf") as file:
        with on_cpu("maddubs", build(file), file, objects, "f32") as main:
            hidden = []
            for i in range(3):
                run(main, golden[f"tokens_{i}"], None)
                hidden.append(main.output("hidden", len(golden[f"tokens_{i}"])).copy())
                assert np.abs(hidden[i] - golden[f"mtp_h_{i}"]).max() < 1e-4
        with on_cpu("maddubs", draft_of(file), file, objects, "f32") as draft:
            for i in range(3):
                got = run(draft, golden[f"tokens_{i}"], shifted(hidden[i]))
                assert np.abs(got - golden[f"mtp_logits_{i}"]).max() < 3e-4
                own = draft.output("hidden", len(got))
                assert np.abs(own - golden[f"mtp_hout_{i}"]).max() < 3e-4
