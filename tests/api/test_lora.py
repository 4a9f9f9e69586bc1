"""LoRA adapters: merged as numpy says, refused as the manual says, in the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.gguf_writer import Tensor, write_gguf
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.cli import main
from kinetic.errors import ModelFileError, UnsupportedError, UsageError
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.quant import by_ggml_id
from kinetic.ir.quant.decode import as_blocks, dequantize
from kinetic.lora import merge

KEYS = {
    "general.type": "adapter",
    "general.architecture": "llama",
    "adapter.type": "lora",
    "adapter.lora.alpha": 8.0,
}
RANK = 4
ADAPTED = ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output.weight")
PROMPT = [1, 50, 60, 70, 80]
F32, F16 = 0, 1
PEER_PPL = 71773.7953
"""What llama-perplexity printed for the model, text and adapter of the test that says so."""


def _noise(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) * 0.1).astype("<f4")


def _matrices(model: Path, names: tuple[str, ...] = ADAPTED, seed: int = 1) -> dict[str, tuple]:
    with GGUFFile.open(model) as file:
        shapes = {name: file.tensors[name].shape for name in names}
    return {
        name: (_noise(seed + i, RANK, k), _noise(seed + 100 + i, n, RANK))
        for i, (name, (n, k)) in enumerate(shapes.items())
    }


def _adapter(path: Path, matrices: dict[str, tuple], **keys: object) -> Path:
    tensors: dict[str, Tensor] = {}
    for name, (a, b) in matrices.items():
        tensors[f"{name}.lora_a"] = (a.shape, F32, a.tobytes())
        tensors[f"{name}.lora_b"] = (b.shape, F32, b.tobytes())
    return write_gguf(path, {**KEYS, **{k.replace("__", "."): v for k, v in keys.items()}}, tensors)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lora") / "model.gguf"
    return tiny_model("llama", path, seed=5, formats="Q8_0", n_vocab=320)


def _logits(path: Path, lora: list[tuple[Path, float]]) -> np.ndarray:
    model = Model.load(path, ctx_size=64, threads=1, lora=lora)
    sequence = model.engine.new_sequence()
    found = np.array(model.engine.prefill(sequence, PROMPT))
    model.close()
    return found


def _in_order(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    total = b[:, :1] * a[:1]
    for r in range(1, RANK):
        total = total + b[:, r : r + 1] * a[r : r + 1]
    return total


def _merged_file(source: Path, path: Path, adapters: list[tuple[dict[str, tuple], float]]) -> Path:
    """The model with the adapters in its weights, as numpy adds them."""
    tensors: dict[str, Tensor] = {}
    with GGUFFile.open(source) as file:
        for name, info in file.tensors.items():
            data, kind = file.data(name).tobytes(), info.type_id
            if any(name in matrices for matrices, _ in adapters):
                fmt = by_ggml_id(info.type_id)
                w = dequantize(fmt, as_blocks(fmt, file.data(name))).reshape(info.shape)
                for matrices, scale in adapters:
                    if name in matrices:
                        a, b = matrices[name]
                        w = w + np.float32(scale * 8.0 / RANK) * _in_order(b, a)
                data, kind = w.astype("<f4").tobytes(), F32
            tensors[name] = (info.shape, kind, data)
        keys = {
            key: value if isinstance(value, str | int | float) else list(value)
            for key, value in file.metadata.items()
        }
        return write_gguf(path, keys, tensors)


def test_logits_are_those_of_the_merged_weights(model_path: Path, tmp_path: Path) -> None:
    """To the bit: an adapter is nothing but other weights."""
    first, second = _matrices(model_path), _matrices(model_path, ADAPTED[:1], seed=7)
    one, two = _adapter(tmp_path / "1.gguf", first), _adapter(tmp_path / "2.gguf", second)
    merged = _merged_file(model_path, tmp_path / "merged.gguf", [(first, 0.5), (second, -1.0)])
    found = _logits(model_path, [(one, 0.5), (two, -1.0)])
    assert (found == _logits(merged, [])).all()
    assert np.abs(found - _logits(model_path, [])).max() > 0.1


def test_a_scale_of_zero_leaves_the_model(model_path: Path, tmp_path: Path) -> None:
    """Adapted matrices stand in F32, whose products are rounded elsewhere."""
    path = _adapter(tmp_path / "a.gguf", _matrices(model_path))
    difference = _logits(model_path, [(path, 0.0)]) - _logits(model_path, [])
    assert np.abs(difference).max() < 0.2


def test_without_alpha_the_scale_is_the_whole_factor(model_path: Path, tmp_path: Path) -> None:
    matrices = _matrices(model_path)
    plain = _adapter(tmp_path / "plain.gguf", matrices, adapter__lora__alpha=0.0)
    usual = _adapter(tmp_path / "usual.gguf", matrices)
    assert (_logits(model_path, [(plain, 2.0)]) == _logits(model_path, [(usual, 1.0)])).all()


def test_f16_adapters_are_read(model_path: Path, tmp_path: Path) -> None:
    matrices = {
        name: (a.astype("<f2"), b.astype("<f2")) for name, (a, b) in _matrices(model_path).items()
    }
    tensors: dict[str, Tensor] = {}
    for name, pair in matrices.items():
        for part, m in zip("ab", pair, strict=True):
            tensors[f"{name}.lora_{part}"] = (m.shape, F16, m.tobytes())
    half = write_gguf(tmp_path / "half.gguf", KEYS, tensors)
    wide = {name: (a.astype("<f4"), b.astype("<f4")) for name, (a, b) in matrices.items()}
    full = _adapter(tmp_path / "full.gguf", wide)
    assert (_logits(model_path, [(half, 1.0)]) == _logits(model_path, [(full, 1.0)])).all()


def test_the_identity_tells_adapters_and_scales_apart(model_path: Path, tmp_path: Path) -> None:
    paths = [
        _adapter(tmp_path / f"{i}.gguf", _matrices(model_path, ADAPTED[:1], seed=i))
        for i in range(2)
    ]
    found = set()
    for lora in ([], [(paths[0], 1.0)], [(paths[0], 0.5)], [(paths[1], 1.0)]):
        with GGUFFile.open(model_path) as file:
            merge(file, lora)
            found.add(file.identity())
    assert len(found) == 4


def test_prompt_states_are_off(model_path: Path, tmp_path: Path) -> None:
    path = _adapter(tmp_path / "a.gguf", _matrices(model_path))
    folder = tmp_path / "states"
    model = Model.load(model_path, ctx_size=64, threads=1, lora=[(path, 1.0)], cache_dir=folder)
    assert model.scheduler._cache is None
    model.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("keys", "error", "complaint"),
    [
        ({"general__type": "model"}, UnsupportedError, "not an adapter"),
        ({"adapter__type": "control"}, UnsupportedError, "only LoRA"),
        ({"adapter__alora__invocation_tokens": [1, 2]}, UnsupportedError, "activated LoRA"),
        ({"general__architecture": "qwen2"}, ModelFileError, "made for qwen2"),
    ],
)
def test_other_files_are_refused(
    model_path: Path, tmp_path: Path, keys: dict[str, object], error: type, complaint: str
) -> None:
    path = _adapter(tmp_path / "a.gguf", _matrices(model_path), **keys)
    with pytest.raises(error, match=complaint):
        Model.load(model_path, lora=[(path, 1.0)])


@pytest.mark.parametrize(
    ("name", "n", "k", "error", "complaint"),
    [
        ("token_embd.weight", 320, 256, UnsupportedError, "token embeddings"),
        ("blk.9.attn_q.weight", 256, 256, ModelFileError, "the model lacks"),
        ("blk.0.attn_q.weight", 128, 256, ModelFileError, "trained on"),
        ("blk.0.attn_q.weight", 256, 128, ModelFileError, "trained on"),
        ("blk.0.attn_norm.weight", 256, 1, UnsupportedError, "vectors"),
    ],
)
def test_weights_that_cannot_be_adapted(
    model_path: Path, tmp_path: Path, name: str, n: int, k: int, error: type, complaint: str
) -> None:
    path = _adapter(tmp_path / "a.gguf", {name: (_noise(0, RANK, k), _noise(1, n, RANK))})
    with pytest.raises(error, match=complaint):
        Model.load(model_path, lora=[(path, 1.0)])


def test_experts_are_refused(tmp_path: Path) -> None:
    model = tiny_model("qwen3moe", tmp_path / "moe.gguf", formats="Q8_0")
    name = "blk.0.ffn_up_exps.weight"
    a, b = _noise(0, 4, RANK, 256), _noise(1, 4, 256, RANK)
    path = _adapter(tmp_path / "a.gguf", {name: (a, b)}, general__architecture="qwen3moe")
    with pytest.raises(UnsupportedError, match="expert"):
        Model.load(model, lora=[(path, 1.0)])


def test_a_lone_half_is_refused(model_path: Path, tmp_path: Path) -> None:
    a = _noise(0, RANK, 256)
    tensors: dict[str, Tensor] = {"blk.0.attn_q.weight.lora_a": (a.shape, F32, a.tobytes())}
    path = write_gguf(tmp_path / "a.gguf", KEYS, tensors)
    with pytest.raises(ModelFileError, match="one of lora_a and lora_b"):
        Model.load(model_path, lora=[(path, 1.0)])


def test_a_scale_must_be_finite(model_path: Path, tmp_path: Path) -> None:
    path = _adapter(tmp_path / "a.gguf", _matrices(model_path))
    with pytest.raises(UsageError, match="scale"):
        Model.load(model_path, lora=[(path, float("nan"))])


# The command line. -------------------------------------------------------------------------


def _perplexity(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["perplexity", *map(str, arguments), "-c", "32", "-t", "1"]) == 0
    return capsys.readouterr().out


def test_the_peers_perplexity_with_an_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What llama-perplexity printed for this model, text and `--lora-scaled a.gguf:0.5`."""
    model = tiny_model("llama", tmp_path / "model.gguf", seed=5, formats="F32")
    adapter = _adapter(tmp_path / "a.gguf", _matrices(model))
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 12)
    out = _perplexity(capsys, model, text, "--chunks", 1, "--lora-scaled", f"{adapter}:0.5")
    assert float(out.partition("]")[2].partition(",")[0]) == pytest.approx(PEER_PPL, rel=0.005)


def test_spellings_of_the_options(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = _adapter(tmp_path / "1.gguf", _matrices(model_path))
    two = _adapter(tmp_path / "2.gguf", _matrices(model_path, seed=9))
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 12)
    start = (model_path, text, "--chunks", 1)
    both = _perplexity(capsys, *start, "--lora", f"{one},{two}")
    assert both == _perplexity(capsys, *start, "--lora", one, "--lora", two)
    assert both == _perplexity(capsys, *start, "--lora-scaled", f"{one}:1,{two}:1.0")
    half = _perplexity(capsys, *start, "--lora-scaled", f"{one}:0.5")
    assert half == _perplexity(capsys, *start, "--lora-scaled", one, "0.5")
    assert half != _perplexity(capsys, *start, "--lora", one)


@pytest.mark.parametrize("value", ["a.gguf", "a.gguf:", "a.gguf:x", ":1"])
def test_a_scale_that_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m.gguf", "Hi", "--lora-scaled", value]) == 2
    assert "FILE:SCALE" in capsys.readouterr().err
