"""The GGUF reader: values, tensors, and one clear error for every kind of damage."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gguf_writer import gguf_bytes, pack_string, write_gguf

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.ir.ggml_types import GGML_TYPES
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.gguf_strings import scan_strings

META: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "flag": True,
    "big": np.uint64(1 << 63),
    "negative": -5,
    "numbers": [1, 2, 3],
    "words": ["a", "", "é" * 200, "x\0y"],
    "nested": [[1, 2], [3]],
    "bools": np.array([True, False]),
}
TENSORS = {
    "a": ((2, 3), 0, np.arange(6, dtype="<f4").tobytes()),
    "b": ((2, 32), 2, bytes(36)),
}
ARCH = pack_string("general.architecture") + struct.pack("<I", 8) + pack_string("llama")


def load(tmp_path: Path, data: bytes) -> GGUFFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return GGUFFile.open(path)


def refuse(tmp_path: Path, data: bytes, *parts: str) -> str:
    with pytest.raises(ModelFileError) as caught:
        load(tmp_path, data)
    text = str(caught.value)
    for part in parts:
        assert part in text
    assert "\n" not in text and len(text) < 600
    return text


def header(n_tensors: int, n_keys: int, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_keys)


def tensor_entry(name: str, dims: list[int], type_id: int, offset: int) -> bytes:
    return (
        pack_string(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", type_id, offset)
    )


@pytest.mark.parametrize("version", [2, 3])
def test_reads_values_and_tensors(tmp_path: Path, version: int) -> None:
    with GGUFFile.open(write_gguf(tmp_path / "a", META, TENSORS, version=version)) as g:
        assert g.version == version and g.alignment == 32 and g.architecture == "llama"
        assert g.get_int("llama.block_count") == 2
        assert g.get_float("llama.rope.freq_base") == 10000.0
        assert g.get_bool("flag") is True
        assert g.get_int("big") == 1 << 63 and g.get_int("negative") == -5
        assert g.get_array("numbers").tolist() == [1, 2, 3]
        words = g.get_strings("words")
        assert list(words) == ["a", "", "é" * 200, "x\0y"] and words[-1] == "x\0y"
        assert words[1:3] == ["", "é" * 200] and len(words) == 4
        assert [a.tolist() for a in g.get_array("nested")] == [[1, 2], [3]]
        assert g.get_array("bools").tolist() == [True, False]
        assert g.get_str("absent", "d") == "d" and g.get_int("absent", None) is None
        assert g.tensors["a"].shape == (2, 3) and g.tensors["b"].type_name == "Q4_0"
        assert g.data("a").view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
        assert g.tensors["b"].offset % 32 == 0 and g.tensors["b"].nbytes == 36
        assert g.data("a").ctypes.data == g.base_address + g.tensors["a"].offset
        g.advise_dontneed("a")
        assert g.type_name("words") == "array[string]"


def test_getters_name_the_key(tmp_path: Path) -> None:
    g = load(tmp_path, gguf_bytes(META, TENSORS))
    with pytest.raises(ModelFileError, match=r"key absent\.key is missing"):
        g.get_int("absent.key")
    with pytest.raises(ModelFileError, match=r"key flag is bool, not an integer"):
        g.get_int("flag", 3)
    with pytest.raises(ModelFileError, match=r"no tensor zz"):
        g.data("zz")


def test_odd_names(tmp_path: Path) -> None:
    for name in (b"a b\n\xff.gguf", "模型 🤖.gguf".encode(), b"--help"):
        path = os.fsencode(tmp_path) + b"/" + name
        with open(path, "wb") as f:
            f.write(gguf_bytes(META, TENSORS))
        assert GGUFFile.open(os.fsdecode(path)).architecture == "llama"
        with open(path, "wb") as f:
            f.write(b"nope" * 9)
        with pytest.raises(ModelFileError) as caught:
            GGUFFile.open(os.fsdecode(path))
        assert "\n" not in str(caught.value)
        str(caught.value).encode("utf-8")


def test_missing_and_odd_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot open"):
        GGUFFile.open(tmp_path / "absent")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe")
    refuse(tmp_path, b"", "needs 24 bytes, has 0")
    refuse(tmp_path, b"PK\3\4" + bytes(100), "not a GGUF file")


def test_padding_at_the_end(tmp_path: Path) -> None:
    whole = gguf_bytes(META, TENSORS)
    for extra in range(32):
        assert load(tmp_path, whole + bytes(extra)).data("b").nbytes == 36
    assert load(tmp_path, gguf_bytes(META, TENSORS, pad_end=False)).data("b").nbytes == 36
    assert not load(tmp_path, gguf_bytes(META, pad_end=False)).tensors


def test_truncation_at_every_length(tmp_path: Path) -> None:
    whole = gguf_bytes(META, TENSORS, pad_end=False)
    for cut in range(len(whole)):
        text = refuse(tmp_path, whole[:cut], f"has {cut}")
        needs = int(text.split("needs ")[1].split(" ")[0])
        assert cut < needs <= len(whole)
    assert "tensor b" in refuse(tmp_path, whole[:-1], f"needs {len(whole)} bytes")


def test_counts_and_lengths(tmp_path: Path) -> None:
    refuse(tmp_path, header(1 << 62, 0), "tensor count at byte 8")
    refuse(tmp_path, header(0, 1 << 40), "metadata count at byte 16")
    refuse(tmp_path, header(0, 1) + struct.pack("<Q", 1 << 63), "count at byte 16")
    refuse(tmp_path, header(0, 1) + struct.pack("<Q", 1 << 63) + bytes(9), "key 0", "byte 24")
    body = header(0, 1) + pack_string("k") + struct.pack("<I", 8) + struct.pack("<Q", 1 << 63)
    refuse(tmp_path, body + bytes(50), "metadata key k", "byte 37", "truncated")
    for kind in (0, 5, 8, 9, 12):
        body = header(0, 1) + pack_string("k") + struct.pack("<IIQ", 9, kind, 1 << 60)
        refuse(tmp_path, body + bytes(50), "metadata key k", "byte 37")


def test_bad_values(tmp_path: Path) -> None:
    key = header(0, 1) + pack_string("k")
    refuse(tmp_path, key + struct.pack("<IQ", 13, 0), "unknown value type 13", "byte 33")
    refuse(tmp_path, key + struct.pack("<IB", 7, 2), "a bool must be 0 or 1", "byte 37")
    bools = struct.pack("<IIQ3B", 9, 7, 3, 1, 0, 9)
    refuse(tmp_path, key + bools, "k[2]", "a bool must be 0 or 1")
    refuse(tmp_path, key + struct.pack("<IIQ", 9, 99, 0), "unknown array element type 99")
    refuse(tmp_path, key + struct.pack("<I", 8) + pack_string(b"\xff\xfe"), "not UTF-8")
    refuse(tmp_path, header(0, 1) + pack_string(b"\xff") + bytes(12), "not UTF-8", "key 0")
    refuse(tmp_path, header(0, 2) + ARCH + ARCH, "general.architecture", "comes twice")
    g = load(tmp_path, gguf_bytes({"w": ["ok", b"\xff"]}))
    assert g.get_strings("w")[0] == "ok"
    with pytest.raises(ModelFileError, match=r"w\[1\] at byte \d+ is not UTF-8"):
        list(g.get_strings("w"))


def test_nested_arrays(tmp_path: Path) -> None:
    deep = struct.pack("<IQ", 9, 1) * 2000 + struct.pack("<IQ", 4, 0)
    body = header(0, 1) + pack_string("a") + struct.pack("<I", 9) + deep
    refuse(tmp_path, body, "nested deeper", "metadata key a")
    wide = struct.pack("<IIQ", 9, 9, 100_000) + struct.pack("<IQ", 4, 0) * 100_000
    refuse(tmp_path, header(0, 1) + pack_string("a") + wide, "arrays inside arrays")


@pytest.mark.parametrize("value", [np.int32(32), np.uint64(32), "32", 0, 3, 1 << 21, 33])
def test_alignment(tmp_path: Path, value: object) -> None:
    good = {"general.architecture": "llama", "general.alignment": 64}
    g = load(tmp_path, gguf_bytes(good, TENSORS))
    assert g.alignment == 64 and g.tensors["b"].offset % 64 == 0
    data = gguf_bytes({"general.architecture": "llama"})[24:]
    from support.gguf_writer import pack_value

    kind, packed = pack_value(value)
    entry = pack_string("general.alignment") + struct.pack("<I", kind) + packed
    refuse(tmp_path, header(0, 2) + data[: len(ARCH)] + entry, "general.alignment")


def test_big_endian(tmp_path: Path) -> None:
    want = "big-endian GGUF is not supported; convert it"
    refuse(tmp_path, struct.pack(">4sIQQ", b"GGUF", 3, 1, 1), want)
    refuse(tmp_path, b"FUGG" + bytes(40), want)
    refuse(tmp_path, header(0, 0, version=1), "version 1 is not supported")
    refuse(tmp_path, header(0, 0, version=9), "version 9 is not supported")
    refuse(tmp_path, b"ggjt"[::-1] + bytes(40), "before GGUF")


def test_bad_tensors(tmp_path: Path) -> None:
    def one(entry: bytes, data: bytes = bytes(4096)) -> bytes:
        head = header(1, 1) + ARCH + entry
        return head + bytes(-len(head) % 32) + data

    entry = tensor_entry
    refuse(tmp_path, one(entry("t", [32], 9999, 0)), "tensor t has unknown type 9999")
    for removed, name in ((4, "Q4_2"), (5, "Q4_3"), (31, "Q4_0_4_4"), (38, "IQ4_NL_8_8")):
        refuse(tmp_path, one(entry("t", [32], removed, 0)), f"type {removed} ({name})", "removed")
    refuse(tmp_path, one(entry("t", [33], 2, 0)), "not a multiple of Q4_0's block of 32")
    refuse(tmp_path, one(entry("t", [0], 0, 0)), "dimension 0 is 0")
    refuse(tmp_path, one(entry("t", [1 << 42, 1 << 42], 0, 0)), "dimension 1", "tensor t")
    refuse(tmp_path, one(entry("t", [1 << 62], 0, 0)), "truncated: needs")
    refuse(tmp_path, one(entry("t", [8], 0, 16)), "not a multiple of the alignment 32")
    refuse(tmp_path, one(entry("t", [8], 0, (1 << 64) - 32)), "truncated: needs")
    many = pack_string("t") + struct.pack("<I", 0xFFFFFFFF)
    refuse(tmp_path, one(many), "has 4294967295 dimensions")
    two = header(2, 1) + ARCH + entry("t", [16], 0, 0)
    refuse(tmp_path, two + entry("t", [16], 0, 64) + bytes(999), "tensor t", "comes twice")
    refuse(tmp_path, two + entry("u", [16], 0, 32) + bytes(999), "overlaps that of tensor t")
    assert load(tmp_path, two + entry("u", [16], 0, 64) + bytes(999)).tensors["u"].nbytes == 64


def test_split_files(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "s", META | {"split.count": np.uint16(3), "split.no": 0}, TENSORS)
    with pytest.raises(UnsupportedError, match=r"part 1 of 3.*--merge"):
        GGUFFile.open(path)
    assert GGUFFile.open(path, allow_split=True).split_count == 3


def test_type_table_is_whole() -> None:
    assert len(GGML_TYPES) == 35
    assert GGML_TYPES[12].nbytes * 8 / GGML_TYPES[12].values == 4.5
    assert len({t.name for t in GGML_TYPES.values()}) == 35


WORDS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([b"", b"\0" * 7, b"\0" * 15, b"x" * 255, b"x" * 256, b"\5" + b"\0" * 7]),
    ),
    max_size=300,
)


@given(WORDS, st.binary(max_size=9))
@settings(max_examples=150, deadline=None)
def test_string_scan_equals_walking(words: list[bytes], before: bytes) -> None:
    blob = before + b"".join(pack_string(w) for w in words)
    starts, lengths, end = scan_strings(
        np.frombuffer(blob + b"tail", np.uint8), len(before), len(words)
    )
    assert end == len(blob)
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    assert [blob[s : s + n] for s, n in pairs] == words


def test_string_scan_crosses_windows() -> None:
    words = [(b"word%d" % i) * (1 + i % 60) for i in range(20_000)]
    blob = b"".join(pack_string(w) for w in words)
    starts, lengths, end = scan_strings(np.frombuffer(blob, np.uint8), 0, len(words))
    assert end == len(blob) and lengths.tolist() == [len(w) for w in words]
    assert blob[starts[777] : starts[777] + lengths[777]] == words[777]


BASE = gguf_bytes(META, TENSORS)


@given(
    st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, len(BASE)),
)
@settings(max_examples=600, deadline=2000)
def test_fuzz(tmp_path_factory: pytest.TempPathFactory, flips: list, cut: int) -> None:  # type: ignore[type-arg]
    data = bytearray(BASE)
    for at, value in flips:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(data[: cut if cut % 3 == 0 else len(data)])
    try:
        with GGUFFile.open(path) as g:
            for value in g.metadata.values():
                if not isinstance(value, (str, int, float)):
                    list(value)
            for name in g.tensors:
                int(g.data(name).sum())
    except (ModelFileError, UnsupportedError) as error:
        assert "\n" not in str(error)


def test_hostile_cases(tmp_path: Path, shared_dir: Path) -> None:
    import json

    loads = 0
    for line in (shared_dir / "cases" / "cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        if case["input"].get("kind") != "gguf":
            continue
        loads += 1
        refuse(tmp_path, bytes.fromhex(case["input"]["hex"]))
    assert loads >= 7
