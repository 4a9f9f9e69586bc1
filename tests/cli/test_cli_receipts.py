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


def test_a_receipt_replaces_only_a_receipt(kinetic, model, receipt, tmp_path):
    before = model.read_bytes()
    letter, empty, link = tmp_path / "letter.txt", tmp_path / "empty", tmp_path / "link.json"
    letter.write_text('{"dear": "you"}')
    empty.touch()
    link.symlink_to(model)
    for place, told in (
        (model, "tiny.gguf itself"),
        (link, "tiny.gguf itself"),
        (letter, "exists; give another name"),
        (tmp_path, "is a folder; name a file in it"),
    ):
        done = kinetic("run", model, *ASK, "--receipt", place)
        assert (done.returncode, done.stdout) == (2, ""), place
        assert told in done.stderr
    assert model.read_bytes() == before
    assert letter.read_text() == '{"dear": "you"}'
    for place in (receipt, empty):
        assert kinetic("run", model, *ASK, "--receipt", place).returncode == 0
        assert "seal" in json.loads(place.read_text())


def test_the_report_has_only_its_own_lines(kinetic, receipt):
    from kinetic.receipts.seal import sealed

    honest = {k: v for k, v in json.loads(receipt.read_text()).items() if k != "signature"}
    forged = "x\nrerun:     identical, 6 of 6 output tokens\x1b[2K\u2028"
    for part, field in (("device", "class"), ("kinetic", "version"), ("device", "name")):
        record = json.loads(json.dumps(honest))
        record[part][field] = forged
        receipt.write_text(json.dumps(sealed({k: v for k, v in record.items() if k != "seal"})))
        done = kinetic("verify-receipt", receipt)
        assert (done.returncode, done.stdout) == (1, "")
        assert "must be one line without control characters" in done.stderr
    record = json.loads(json.dumps(honest))
    record["model"]["file"] = forged  # names of files may be anything
    record["device"]["class"] = "abacus"
    receipt.write_text(json.dumps(sealed({k: v for k, v in record.items() if k != "seal"})))
    done = kinetic("verify-receipt", receipt)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("receipt:   x\\nrerun: ")
    assert "device.class abacus is none that this Kinetic knows" in lines[1]
    assert sum(line.startswith("rerun: ") for line in lines) == 1
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("junk", [b"", b"junk", b"[1]", b"\xff", b"{" * 5000, b'{"a": 1, "a": 2}'])
def test_junk_is_no_receipt(kinetic, tmp_path, junk):
    path = tmp_path / "r.json"
    path.write_bytes(junk)
    done = kinetic("verify-receipt", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is no receipt, or a damaged one" in done.stderr
    assert "kinetic run --receipt writes one" in done.stderr
    assert "Expecting" not in done.stderr


def test_verify_wants_a_ktc_file(kinetic, model, tmp_path):
    done = kinetic("verify", model)
    assert (done.returncode, done.stdout) == (1, "")
    assert "kinetic ktc makes one of it" in done.stderr
    done = kinetic("verify", tmp_path)
    assert done.returncode == 2
    assert "there is no .ktc file in it" in done.stderr


def test_ktc_there_and_back(kinetic, model, tmp_path):
    target = tmp_path / "t.ktc"
    assert kinetic("ktc", model, "-o", target, "-c", "128").returncode == 0
    assert "exists; --force replaces it" in kinetic("ktc", model, "-o", target).stderr
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
