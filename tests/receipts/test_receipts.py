"""Receipts: made in any company, verified alone; and what happens to one that was changed."""

from __future__ import annotations

import copy
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import tiny_model

pytest.importorskip("nacl")
from nacl.signing import SigningKey

from kinetic.api import Model, SamplingParams
from kinetic.errors import KineticError, ModelFileError, UsageError
from kinetic.generation import GenerationRequest
from kinetic.receipts import hashing
from kinetic.receipts.build import build_id
from kinetic.receipts.canonical import MAX_DEPTH, leaves
from kinetic.receipts.fields import check_fields
from kinetic.receipts.files import read_receipt, receipt_of, receipt_text, write_receipt
from kinetic.receipts.held import Held
from kinetic.receipts.make import Heard, make_receipt
from kinetic.receipts.seal import check_seals, check_signature, sealed, signed
from kinetic.receipts.signing import load_key
from kinetic.receipts.verify import check_file, load_again, rerun

KEY = SigningKey(bytes(range(32)))
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
EVERYTHING = SamplingParams(
    temperature=0.9,
    top_k=30,
    top_p=0.9,
    min_p=0.01,
    typical_p=0.98,
    xtc_probability=0.3,
    repeat_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    dry_multiplier=0.5,
    dry_sequence_breakers=("\n", (9, 10)),
    logit_bias={3: -float("inf"), 11: 1.5},
    seed=2**63 + 1,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_model("llama", path, seed=1)
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture(scope="module")
def model(path):
    model = Model.load(path, threads=1, parallel=4, ctx_size=256)
    yield model
    model.close()


def answered(model, request, held=None, key=None):
    if held is not None:
        request = replace(request, constraint=held.constraint(model))
    heard = Heard()
    for event in model.start(request).events():
        heard.take(event)
    return make_receipt(model, request, heard.answer(), given="hello", held=held, key=key)


@pytest.fixture(scope="module")
def record(model):
    request = GenerationRequest(PROMPT, EVERYTHING, 12, ("never",), choice=2)
    return answered(model, request, key=KEY)


def alone(record, path, device_class=None):
    model = load_again(record, path, device_class=device_class, threads=1)
    try:
        return rerun(record, model)
    finally:
        model.close()


@pytest.mark.parametrize("device_class", [None, "cpu-x86_64-scalar"])
def test_made_in_company_and_verified_alone(model, path, device_class):
    made: dict[int, dict] = {}

    def ask(i: int) -> None:
        params = replace(EVERYTHING, seed=i)
        # Repetition is what guesses thrive on.
        made[i] = answered(model, GenerationRequest(PROMPT * (i + 1), params, 16 + i))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in (0, 3):
        verdict = alone(made[i], path, device_class)
        assert verdict.identical, verdict.lines
        assert verdict.lines[0].startswith("identical, ")
        assert any("rerun on cpu-x86_64-scalar" in line for line in verdict.lines) == (
            device_class is not None and made[i]["device"]["class"] != device_class
        )


@pytest.mark.parametrize(
    "held",
    [Held("json_schema", '{"type": "integer"}'), Held("grammar", 'root ::= "a" [bc]+')],
)
def test_a_form_is_recorded_and_held_again(model, path, held):
    pytest.importorskip("llguidance")
    record = answered(model, GenerationRequest(PROMPT, SamplingParams(seed=4), 9), held)
    assert Held.of(record["sampling"]["constraint"]) == held
    assert alone(record, path).identical


def test_stop_texts_and_ends_from_outside(model, path):
    free = answered(model, GenerationRequest(PROMPT, SamplingParams(seed=9), 12))
    text = free["output"]["text"]
    stop = next(c for c in text[2:] if c.isprintable())
    stopped = answered(model, GenerationRequest(PROMPT, SamplingParams(seed=9), 12, (stop,)))
    assert stopped["output"]["finish"] == "stop"
    assert alone(stopped, path).identical
    cut = copy.deepcopy(free)
    cut["output"]["finish"] = "cancelled"
    assert alone(sealed(cut), path).identical


def test_the_file_reads_back(record, tmp_path):
    write_receipt(tmp_path / "r.json", record)
    assert read_receipt(tmp_path / "r.json") == record
    assert check_signature(record, "r.json") == bytes(KEY.verify_key).hex()
    assert record["kinetic"]["build"] == build_id()


# Tampering. --------------------------------------------------------------------------------

NAMES = [
    *("receipt", "kinetic.version", "kinetic.build", "arithmetic", "graph"),
    *("model.file", "model.path", "model.size", "model.blake3"),
    *("device.class", "device.name", "device.settings.ctx-size", "device.settings.kv-type"),
    *("device.settings.lora", "input", "prompt.count", "prompt.blake3", "prompt.ids"),
    *(f"sampling.{f}" for f in SamplingParams.__dataclass_fields__ if f != "logit_bias"),
    *("sampling.logit_bias.3", "sampling.logit_bias.11", "sampling.choice"),
    *("sampling.max_tokens", "sampling.stop", "sampling.ignore_eos", "sampling.shown"),
    *("sampling.constraint", "output.finish", "output.text"),
    *("output.tokens.count", "output.tokens.blake3", "output.tokens.ids"),
]


def changed(value):
    """Another value of the same kind, as near as can be."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, float):
        return value + 0.125
    if isinstance(value, str):
        return {"-inf": 0.5, "length": "end"}.get(value) or (
            ("0" if value[:1] != "0" else "1") + value[1:]
        )
    if isinstance(value, list):
        if not value:
            return []
        return [*value[:-1], changed(value[-1])] if isinstance(value[-1], int) else value[:-1]
    return value


def put(record, name, value):
    out = copy.deepcopy(record)
    *way, last = name.split(".")
    inner = out
    for part in way:
        inner = inner[part]
    inner[last] = value
    return out


def test_the_table_names_every_field(record):
    plain = {k: v for k, v in record.items() if k not in ("seal", "signature")}
    assert sorted(NAMES) == sorted(name for name, _ in leaves(plain))


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_field_is_named(record, name):
    plain = dict(leaves(record))
    new = changed(plain[name])
    if new == plain[name]:  # nothing, or an empty list
        new = {"sampling.constraint": "x", "sampling.shown": [1]}.get(name, ["x"])
        if plain[name] is None and name == "sampling.max_tokens":
            new = 5
    with pytest.raises(ModelFileError, match=name.split(".")[-1]) as told:
        receipt_of(receipt_text(put(record, name, new)).encode(), "r.json")
    assert name in str(told.value)
    # Whoever makes the seal anew cannot make the signature anew.
    with pytest.raises(ModelFileError, match="signature"):
        check_signature(sealed(put(record, name, new)), "r.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_is_named(record, name):
    if name.startswith("sampling.logit_bias"):
        name = "sampling.logit_bias"
    out = copy.deepcopy(record)
    *way, last = name.split(".")
    inner = out
    for part in way:
        inner = inner[part]
    del inner[last]
    with pytest.raises(ModelFileError, match=f"field {name} is missing"):
        check_fields(out, "r.json")


@pytest.mark.parametrize("name", ["signature.public_key", "signature.ed25519"])
def test_a_changed_signature_is_named(record, name):
    value = dict(leaves(record))[name]
    with pytest.raises(ModelFileError, match=name):
        check_signature(put(record, name, changed(value)), "r.json")


def test_every_seal_counts(record):
    for name in record["seal"]:
        seal = {**record["seal"], name: "0" * 16}
        with pytest.raises(ModelFileError) as told:
            check_seals({**record, "seal": seal}, "r.json")
        assert name in str(told.value)
    with pytest.raises(ModelFileError, match=r"kinetic\.bild"):
        check_seals({**record, "seal": {**record["seal"], "kinetic.bild": "0" * 16}}, "r.json")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("kinetic.version", "9.9", "kinetic.version"),
        ("arithmetic", "kinetic-arith-0", "arithmetic"),
        ("graph", "0" * 64, "graph"),
        ("sampling.top_p", 1.5, "top_p"),
    ],
)
def test_a_claim_that_this_build_knows_to_be_false(record, path, name, value, told):
    with pytest.raises(ModelFileError, match=told):
        alone(sealed(put(record, name, value)), path)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("sampling.seed", 1, "output token"),
        ("output.finish", "end", "output.finish"),
        ("output.text", "x", "output.text"),
    ],
)
def test_a_false_receipt_fails_the_rerun(record, path, name, value, told):
    verdict = alone(sealed(put(record, name, value)), path)
    assert not verdict.identical
    assert told in verdict.lines[0]


def test_another_build_and_graph_are_told(record, path):
    other = put(put(record, "kinetic.build", "0" * 16), "graph", "1" * 64)
    verdict = alone(sealed(other), path)
    assert verdict.identical
    assert any("build 0000" in line for line in verdict.lines)
    verdict = alone(sealed(put(other, "sampling.seed", 1)), path)
    assert not verdict.identical
    assert "a difference is expected" in verdict.lines[-1]


def test_another_model_is_refused(record, tmp_path):
    tiny_model("llama", tmp_path / "other.gguf", seed=2)
    with pytest.raises(ModelFileError, match=r"model\.blake3"):
        check_file(record["model"], tmp_path / "other.gguf", "model")


# What strangers send. ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"receipt": 2}',
        b'{"receipt": 1, "receipt": 1}',
        b'{"receipt": NaN}',
        b'{"receipt": ' + b"9" * 10000 + b"}",
        b'{"a": ' + b"[" * 100000 + b"]" * 100000 + b"}",
        b"[" * (MAX_DEPTH + 1),
        b'{"a": "' + b"\\" * 1001,
    ],
)
def test_junk_is_refused_in_a_sentence(data):
    with pytest.raises(ModelFileError):
        receipt_of(data, "r.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_field_may_be_anything(record, path, data):
    names = [*dict(leaves(record)), "model", "device", "sampling", "output", "seal", "prompt"]
    bad = put(record, data.draw(st.sampled_from(names[:48])), data.draw(VALUES))
    raw = json.dumps(bad).encode()
    for again in (raw, raw[: data.draw(st.integers(0, len(raw)))]):
        try:
            receipt_of(again, "r.json")
        except KineticError:
            continue


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed_or_means_nothing(record, at, bit):
    raw = bytearray(receipt_text(record).encode())
    raw[at % len(raw)] ^= 1 << bit
    try:
        found = receipt_of(bytes(raw), "r.json")
        check_signature(found, "r.json")
    except KineticError:
        return
    assert found == record  # white space


# Keys and hashes. --------------------------------------------------------------------------


def test_keys_are_bytes_or_hex_and_private(tmp_path, capsys):
    file = tmp_path / "key"
    for content in (bytes(KEY), bytes(KEY).hex().encode() + b"\n"):
        file.write_bytes(content)
        file.chmod(0o600)
        assert bytes(load_key(file)) == bytes(KEY)
    assert capsys.readouterr().err == ""
    if os.name == "posix":
        file.chmod(0o644)
        load_key(file)
        assert "chmod 600" in capsys.readouterr().err
    for bad in (b"", b"x" * 31, b"g" * 64, b"0" * 65, b"0" * 4096):
        file.write_bytes(bad)
        with pytest.raises(UsageError, match="holds no key"):
            load_key(file)
    with pytest.raises(UsageError, match="cannot be read"):
        load_key(tmp_path / "none")


def test_a_signature_needs_its_key(record):
    other = signed({k: v for k, v in record.items() if k != "signature"}, SigningKey(b"1" * 32))
    mixed = {
        **record,
        "signature": {**record["signature"], "public_key": other["signature"]["public_key"]},
    }
    with pytest.raises(ModelFileError, match=r"signature\.public_key"):
        check_signature(mixed, "r.json")


def test_hashes_are_remembered_within_bounds(tmp_path, monkeypatch):
    store = tmp_path / "hashes.json"
    files = []
    for i in range(4):
        files.append(tmp_path / f"{i}.bin")
        files[-1].write_bytes(b"%d" % i)
        os.utime(files[-1], (1e9, 1e9))
    monkeypatch.setattr(hashing, "KEEP", 3)
    found = [hashing.file_hash(f, cache=store) for f in files]
    assert len(json.loads(store.read_text())) == 3
    monkeypatch.setattr(hashing, "_hash", lambda *_: "f" * 64)
    assert hashing.file_hash(files[3], cache=store) == found[3]
    assert hashing.file_hash(files[0], cache=store) == "f" * 64  # dropped
    files[3].write_bytes(b"another")
    assert hashing.file_hash(files[3], cache=store) == "f" * 64
    for junk in (b"[]", b"{", b'{"a": [1]}', b"\xff" * 9, b"[" * 100000):
        store.write_bytes(junk)
        assert hashing.file_hash(files[0], cache=store) == "f" * 64


def test_no_receipt_without_the_form(model):
    held = Held("grammar", 'root ::= "a"')
    pytest.importorskip("llguidance")
    request = GenerationRequest(
        PROMPT, SamplingParams(seed=1), 3, constraint=held.constraint(model)
    )
    heard = Heard()
    for event in model.start(request).events():
        heard.take(event)
    with pytest.raises(UsageError, match="form"):
        make_receipt(model, request, heard.answer(), given="x")


def test_the_folder_is_not_told_where_it_is_not_wanted(model):
    heard = Heard()
    request = GenerationRequest(PROMPT, SamplingParams(seed=1), 3)
    for event in model.start(request).events():
        heard.take(event)
    record = make_receipt(model, request, heard.answer(), given="x", paths=False)
    assert record["model"]["path"] == Path(model.file.path).name
