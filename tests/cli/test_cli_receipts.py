"""`run --receipt`, `verify-receipt`, `ktc` and `verify`, from the shell's side."""

from __future__ import annotations

import json

import pytest
from support.tiny_models import tiny_model

pytest.importorskip("nacl")

ASK = ("hello", "-n", "6", "--temp", "0.9", "-t", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny_model("llama", path, seed=1)
    return path


@pytest.fixture
def receipt(kinetic, model, tmp_path):
    path, key = tmp_path / "r.json", tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    done = kinetic("run", model, *ASK, "--receipt", path, "--sign-key", key)
    assert done.returncode == 0, done.stderr
    assert "chmod" not in done.stderr
    return path


def test_identical_on_both_classes(kinetic, receipt):
    for more in ((), ("--device-class", "cpu-x86_64-scalar")):
        done = kinetic("verify-receipt", receipt, *more, "--device", "cpu", "-t", "1")
        assert done.returncode == 0, done.stderr
        first, signature, file, rerun, *_ = done.stdout.splitlines()
        assert first.startswith("receipt:   tiny.gguf, ")
        assert signature.startswith("signature: valid, public key ")
        assert file.startswith("model:     tiny.gguf matches (BLAKE3 ")
        assert rerun.startswith("rerun:     identical, ")


def test_what_does_not_match_exits_with_1(kinetic, receipt, model, tmp_path):
    record = json.loads(receipt.read_text())
    record["sampling"]["seed"] += 1
    receipt.write_text(json.dumps(record))
    done = kinetic("verify-receipt", receipt)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the field sampling.seed does not match its seal" in done.stderr
    other = tmp_path / "other.gguf"
    tiny_model("llama", other, seed=2)
    assert kinetic("run", model, *ASK, "--receipt", receipt).returncode == 0
    done = kinetic("verify-receipt", receipt, "--model", other)
    assert done.returncode == 1
    assert "model.blake3" in done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("verify-receipt",), "name one receipt"),
        (("verify",), "name one file"),
        (("verify-receipt", "r.json", "--device", "cuda"), "not supported yet"),
        (("verify-receipt", "none.json"), "cannot be read"),
    ],
)
def test_wrong_lines(kinetic, line, told):
    done = kinetic(*line)
    assert done.returncode in (1, 2)
    assert told in done.stderr


def test_a_key_alone_and_a_place_that_is_none(kinetic, model, tmp_path):
    assert "add --receipt" in kinetic("run", model, *ASK, "--sign-key", "k").stderr
    done = kinetic("run", model, *ASK, "--receipt", tmp_path / "no" / "r.json")
    assert done.returncode == 2
    assert "no place for a file" in done.stderr


def test_ktc_there_and_back(kinetic, model, tmp_path):
    target = tmp_path / "t.ktc"
    assert kinetic("ktc", model, "-o", target, "-c", "128").returncode == 0
    assert "is there already" in kinetic("ktc", model, "-o", target).stderr
    done = kinetic("verify", target)
    assert done.returncode == 0, done.stderr
    assert "signature: none" in done.stdout
    assert "context 128" in done.stdout
    greedy = ("hello", "-n", "6", "--temp", "0", "-t", "1")
    one, two = kinetic("run", model, *greedy), kinetic("run", target, *greedy)
    assert one.stdout == two.stdout
    assert kinetic("info", target).returncode == 0
    raw = bytearray(target.read_bytes())
    raw[-5] ^= 1
    target.write_bytes(raw)
    done = kinetic("verify", target)
    assert done.returncode == 1
    assert "does not match its hash" in done.stderr
