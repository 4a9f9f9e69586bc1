"""The .ktc format: written, opened as a model, verified, signed; and every byte counts."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gguf_writer import write_gguf
from support.tiny_models import tiny_model

pytest.importorskip("nacl")
from nacl.signing import SigningKey

from kinetic.api import Model, SamplingParams
from kinetic.errors import KineticError, ModelFileError, UsageError
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.gguf_split import open_model
from kinetic.ir.ktc import HEAD, PAGE
from kinetic.ktc.verify import verify_ktc
from kinetic.ktc.write import sign_ktc, write_ktc

KEY = SigningKey(bytes(range(32)))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("ktc") / "tiny.gguf"
    tiny_model("llama", path, seed=1)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A signed file of a few kilobytes."""
    folder = tmp_path_factory.mktemp("small")
    tensors = {
        "a.weight": ([24], 0, np.arange(24, dtype=np.float32).tobytes()),
        "b": ([2, 3], 0, np.ones(6, np.float32).tobytes()),
    }
    write_gguf(folder / "s.gguf", {"general.architecture": "llama", "x": [1, 2]}, tensors)
    write_ktc(folder / "s.gguf", folder / "s.ktc", key=KEY, n_ctx=512, device_class="cpu")
    return folder / "s.ktc"


def answer(path):
    model = Model.load(path, threads=1, ctx_size=64)
    try:
        pieces = model.generate([5, 6, 7], SamplingParams(temperature=0), 8)
        return [piece.token_id for piece in pieces]
    finally:
        model.close()


def test_the_same_model_with_hashes(gguf, tmp_path):
    write_ktc(gguf, tmp_path / "t.ktc")
    with open_model(gguf) as one, open_model(tmp_path / "t.ktc") as two:
        assert list(one.metadata) == list(two.metadata)
        assert list(one.tensors.values()) == list(two.tensors.values())
        for name in one.tensors:
            np.testing.assert_array_equal(one.data(name), two.data(name))
            two.advise_dontneed(name)
            np.testing.assert_array_equal(one.data(name), two.data(name))
    assert answer(gguf) == answer(tmp_path / "t.ktc")
    found = verify_ktc(tmp_path / "t.ktc")
    assert (found.public_key, found.n_ctx) == (None, None)


def test_read_instead_of_mapped(small):
    with open_model(small, in_memory=True) as file:
        assert file.data("b").view(np.float32).tolist() == [1.0] * 6


def test_the_profile_and_the_signature_are_told(small):
    found = verify_ktc(small)
    assert found.public_key == bytes(KEY.verify_key).hex()
    assert (found.n_ctx, found.device_class) == (512, "cpu")
    assert found.sections == 3
    assert found.nbytes == small.stat().st_size


def test_signed_later_and_anew(gguf, tmp_path):
    path = tmp_path / "t.ktc"
    write_ktc(gguf, path)
    size = path.stat().st_size
    for key in (KEY, SigningKey(b"2" * 32)):
        sign_ktc(path, key)
        assert verify_ktc(path).public_key == bytes(key.verify_key).hex()
    assert path.stat().st_size == size


def test_what_is_no_ktc(gguf, small, tmp_path):
    for act in (lambda: verify_ktc(gguf), lambda: sign_ktc(gguf, KEY)):
        with pytest.raises((ModelFileError, UsageError), match=r"no \.ktc file"):
            act()
    with pytest.raises(UsageError, match="already"):
        write_ktc(small, tmp_path / "again.ktc")
    assert list(tmp_path.iterdir()) == []


def refused(tmp_path, raw):
    path = tmp_path / "bad.ktc"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError) as told:
        verify_ktc(path)
    return str(told.value)


def test_every_byte_counts(small, tmp_path):
    raw = small.read_bytes()
    for at in {*range(400), *range(400, len(raw), 37), len(raw) - 1}:
        bad = bytearray(raw)
        bad[at] ^= 1 << at % 8
        refused(tmp_path, bytes(bad))


def test_no_cut_and_nothing_after(small, tmp_path):
    raw = small.read_bytes()
    for end in (*range(0, 300, 7), PAGE, len(raw) - 1):
        refused(tmp_path, raw[:end])
    assert "bytes" in refused(tmp_path, raw + b"\0")


def rebuilt(raw, change):
    """A file whose manifest says something else, with all hashes right."""
    fields = list(HEAD.unpack_from(raw))
    manifest = json.loads(raw[HEAD.size : HEAD.size + fields[2]])
    model = raw[-(-(HEAD.size + fields[2]) // PAGE) * PAGE :]
    new = change(manifest)
    new = new if isinstance(new, bytes) else json.dumps(manifest).encode()
    start = -(-(HEAD.size + len(new)) // PAGE) * PAGE
    fields[2:9] = [len(new), start + len(model), blake3(new).digest(), 0, 0, bytes(32), bytes(64)]
    before = HEAD.pack(*fields)[:-32]
    head = before + blake3(before).digest()
    return (head + new).ljust(start, b"\0") + model


CHANGES = {
    "profile": lambda m: m["profile"].update(x=1),
    "ctx-size": lambda m: m["profile"].update({"ctx-size": 0}),
    "made_by": lambda m: m.update(made_by=3),
    "sections": lambda m: m.update(sections=[]),
    "must have made_by": lambda m: m.pop("profile") and None,
    "the first alone": lambda m: m["sections"][0].update(name="x"),
    "in the file": lambda m: m["sections"][1].update(bytes=1 << 60),
    "follow the last": lambda m: m["sections"].pop() and None,
    "before the one": lambda m: m["sections"].append(m["sections"][1]),
    "not where the model": lambda m: m["sections"][1].update(name="tensor:z"),
    "64 hex": lambda m: m["sections"][1].update(blake3=[]),
    "does not match its hash": lambda m: m["sections"][1].update(blake3="0" * 64),
    "twice": lambda m: b'{"made_by": 1, "made_by": 1}',
    "too deep": lambda m: b"[" * 100000,
    "NaN": lambda m: b'{"made_by": NaN}',
}


@pytest.mark.parametrize("told", CHANGES)
def test_a_manifest_that_lies_is_refused(small, tmp_path, told):
    assert told in refused(tmp_path, rebuilt(small.read_bytes(), CHANGES[told]))


def test_a_good_rebuild_is_taken(small, tmp_path):
    (tmp_path / "good.ktc").write_bytes(rebuilt(small.read_bytes(), lambda m: None))
    assert verify_ktc(tmp_path / "good.ktc").public_key is None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_strangers_raise_nothing_else(small, tmp_path_factory, data):
    raw = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 9))
        raw[at : at + 8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
    before = bytes(raw[:160])
    raw[160:192] = blake3(before).digest()
    path = tmp_path_factory.mktemp("f") / "f.ktc"
    path.write_bytes(raw)
    try:
        with GGUFFile.open(path):
            pass
        verify_ktc(path)
    except KineticError:
        pass


def test_the_profile_sets_the_context_unless_told(gguf, tmp_path):
    write_ktc(gguf, tmp_path / "p.ktc", n_ctx=96)
    for asked, got in ((None, 96), (48, 48)):
        model = Model.load(tmp_path / "p.ktc", threads=1, ctx_size=asked)
        assert model.n_ctx == got
        model.close()
