"""`kinetic info`: its layout, its JSON, and files that mean harm."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.gguf_writer import Tensor, write_gguf
from support.tiny_models import tiny_model

Q4_K, F32, F64 = 12, 0, 28

METADATA = {
    "general.architecture": "gemma3",
    "general.name": "Tiny",
    "gemma3.context_length": 32768,
    "gemma3.block_count": 18,
    "gemma3.embedding_length": 640,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>", "a"],
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "{{ 'é' }}",
}
TENSORS: dict[str, Tensor] = {
    "token_embd.weight": ((4, 256), Q4_K, b"\0" * 4 * 144),
    "output.weight": ((4, 256), Q4_K, b"\0" * 4 * 144),
    "output_norm.weight": ((256,), F32, b"\0" * 1024),
}


@pytest.fixture
def model(tmp_path):
    """Write a file whose metadata is METADATA with some values changed, None to drop one."""

    def write(changes: dict[str, object] | None = None, tensors: dict[str, Tensor] | None = None):
        metadata = {**METADATA, **(changes or {})}
        kept = {key: value for key, value in metadata.items() if value is not None}
        return write_gguf(tmp_path / "tiny.gguf", kept, {**TENSORS, **(tensors or {})})

    return write


def test_the_layout_is_the_manuals(kinetic, model):
    done = kinetic("info", model())
    assert (done.returncode, done.stderr) == (0, "")
    *lines, runs = done.stdout.splitlines()
    assert runs.startswith("  runs           no, it needs: ")  # it has no layers
    assert lines == [
        "tiny.gguf",
        "  name           Tiny",
        "  architecture   gemma3",
        "  size           0.00 GiB, 0.00 B parameters",
        "  context        32768 tokens",
        "  layers         18, width 640",
        "  prediction     no",
        "  weights        Q4_K      2 tensors        0.0 MiB",
        "                 F32       1 tensor         0.0 MiB",
        "  tokenizer      llama (default), 4 tokens, BOS <bos>, EOS <eos>",
        "  chat template  10 bytes",
    ]


def test_a_model_that_runs_says_so(kinetic, tmp_path):
    assert (
        "  runs           yes\n" in kinetic("info", tiny_model("llama", tmp_path / "m.gguf")).stdout
    )


def test_json_is_one_object_with_the_same_facts(kinetic, model):
    path = model()
    done = kinetic("info", "--json", path)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert isinstance(told.pop("missing"), str)
    assert told == {
        "file": "tiny.gguf",
        "name": "Tiny",
        "architecture": "gemma3",
        "supported": True,
        "size_bytes": path.stat().st_size,
        "parameters": 4 * 256 * 2 + 256,
        "context_length": 32768,
        "layers": 18,
        "width": 640,
        "prediction_block": False,
        "weights": [
            {"type": "Q4_K", "tensors": 2, "bytes": 1152, "supported": True},
            {"type": "F32", "tensors": 1, "bytes": 1024, "supported": True},
        ],
        "tokenizer": {
            "model": "llama",
            "pre": "default",
            "tokens": 4,
            "bos": "<bos>",
            "eos": "<eos>",
            "supported": True,
        },
        "chat_template_bytes": 10,
        "pooling": None,
    }


def test_what_is_not_supported_says_so(kinetic, model):
    path = model(
        {"general.architecture": "mamba9", "mamba9.block_count": 3},
        {"x": ((2, 256), F64, bytes(2 * 256 * 8))},
    )
    lines = kinetic("info", path).stdout.splitlines()
    assert "  architecture   mamba9 (not supported yet)" in lines
    assert any(line.endswith("(not supported yet)") and "F64" in line for line in lines)
    assert "  layers         3, width unknown" in lines
    assert "  context        unknown" in lines


@pytest.mark.parametrize(
    ("kind", "pre", "shown"),
    [
        ("gpt2", "qwen2", "gpt2 (qwen2), 4"),
        ("gpt2", None, "gpt2, 4"),
        ("gpt2", "from-the-future", "gpt2 (from-the-future) (not supported yet), 4"),
        ("t5", "default", "t5 (default), 4"),
        ("rwkv", "default", "rwkv (default) (not supported yet), 4"),
    ],
)
def test_the_tokenizer_line_names_what_is_missing(kinetic, model, kind, pre, shown):
    path = model({"tokenizer.ggml.model": kind, "tokenizer.ggml.pre": pre})
    assert f"  tokenizer      {shown} tokens" in kinetic("info", path).stdout


def test_a_bos_token_that_is_never_added_is_none(kinetic, model):
    out = kinetic("info", model({"tokenizer.ggml.add_bos_token": False})).stdout
    assert "BOS none, EOS <eos>" in out


def test_a_prediction_block_is_named(kinetic, model):
    out = kinetic("info", model({"gemma3.nextn_predict_layers": 1})).stdout
    assert "  prediction     yes (drafts for speculative decoding)" in out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer.ggml.eos_token_id": 4_000_000}, "EOS none"),
        ({"tokenizer.ggml.eos_token_id": "1"}, "EOS none"),
        ({"tokenizer.ggml.eos_token_id": True}, "EOS none"),
        ({"tokenizer.ggml.model": None}, "tokenizer      none"),
        ({"tokenizer.chat_template": None}, "chat template  none"),
        ({"general.name": 7}, "name           none"),
        ({"gemma3.block_count": [1, 2]}, "layers         unknown"),
        ({"gemma3.context_length": np.float32(1)}, "context        unknown"),
    ],
)
def test_odd_values_are_told_and_do_not_stop_it(kinetic, model, changes, says):
    done = kinetic("info", model(changes))
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


def test_text_from_a_file_cannot_drive_the_terminal(kinetic, model):
    evil = "\x1b]0;owned\x07\r\nx\x9b31m"
    path = model({"general.name": evil, "tokenizer.ggml.model": evil, "tokenizer.ggml.pre": evil})
    for line in (["info", path], ["info", "--json", path]):
        out = kinetic(*line).stdout
        assert not set(out) & set("\x1b\x07\r\x9b")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"FORCE_COLOR": "1"}])
def test_no_escape_byte_is_ever_written(kinetic, model, env):
    for line in (["info", model()], ["--help"], ["run", "--help"], ["run", "--no-such"]):
        done = kinetic(*line, env=env)
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"PK\x03\x04" + data, id="not GGUF"),
        pytest.param(lambda data: data[:100], id="cut in the header"),
        pytest.param(lambda data: data[:-1200], id="cut in the weights"),
        pytest.param(lambda data: data[:8] + b"\xff" * 8 + data[16:], id="huge count"),
    ],
)
def test_a_damaged_file_is_one_sentence(kinetic, model, damage):
    path = model()
    path.write_bytes(damage(path.read_bytes()))
    done = kinetic("info", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kinetic: ")
    assert done.stderr.count("\n") == 1


def test_one_model_at_a_time(kinetic, model):
    done = kinetic("info", model(), "another.gguf")
    assert done.returncode == 2
    assert "a word too many" in done.stderr


def test_info_says_that_a_family_is_experimental(kinetic, tmp_path):
    done = kinetic("info", tiny_model("lfm3", tmp_path / "m.gguf"))
    assert done.returncode == 0
    assert "lfm3 (experimental: there is no public reference" in done.stdout
