"""Ways to load a file: each gives the same words, and says so when it cannot be had."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.errors import ContextError, InternalError, ModelFileError
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.devices import mapping

PROMPT = [5, 6, 7, 8]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Tied: the embedding table is repacked for the head and read raw for tokens.
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    sizes = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 320, "n_ctx": 1024}
    return tiny_model("qwen2", path, formats="Q8_0", **sizes)


@pytest.fixture(autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "load-option-kernels"
    monkeypatch.setenv("KINETIC_CACHE_DIR", str(folder))


def words(path: Path, **options: object) -> bytes:
    model = Model.load(path, threads=2, **options)  # type: ignore[arg-type]
    try:
        sequence = model.engine.new_sequence()
        logits = model.engine.prefill(sequence, PROMPT * 100)  # a step that drops the table
        return model.engine.decode(sequence, int(logits.argmax())).tobytes()
    finally:
        model.close()


def test_every_way_to_load_gives_the_same_words(path: Path, tmp_path: Path) -> None:
    plain, cache = words(path), tmp_path / "cache"
    assert words(path, mmap=False) == plain
    assert words(path, repack_cache=cache) == plain
    assert len(list(cache.iterdir())) == 1
    assert words(path, repack_cache=cache) == plain
    assert words(path, repack_cache=cache, mmap=False) == plain
    assert len(list(cache.iterdir())) == 1


def test_a_file_in_memory_outlives_what_happens_to_it(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(path, copy)
    expected = words(path)
    model = Model.load(copy, threads=1, mmap=False)
    copy.write_bytes(b"")
    sequence = model.engine.new_sequence()
    logits = model.engine.prefill(sequence, PROMPT * 100)
    assert model.engine.decode(sequence, int(logits.argmax())).tobytes() == expected
    model.close()


def test_a_changed_file_is_another_cache_entry(path: Path, tmp_path: Path) -> None:
    copy, cache = tmp_path / "copy.gguf", tmp_path / "cache"
    shutil.copy2(path, copy)
    before = words(copy, repack_cache=cache)
    raw = bytearray(copy.read_bytes())
    raw[-64:] = bytes(64)
    status = copy.stat()
    copy.write_bytes(raw)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    # Size, time and header are as before: the sample of the weights tells.
    with GGUFFile.open(path) as old, GGUFFile.open(copy) as new:
        assert old.identity() != new.identity()
    words(copy, repack_cache=cache)
    os.utime(copy, ns=(1, 1))
    words(copy, repack_cache=cache)
    assert len(list(cache.iterdir())) == 3
    assert words(path, repack_cache=cache) == before


def test_a_cache_that_cannot_be_written_is_a_notice(
    path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert words(path, repack_cache=tmp_path / "file") == words(path)
    err = capfd.readouterr().err
    assert err.startswith("kinetic: the repacked weights could not be kept in") and "\n" in err
    words(path, repack_cache=tmp_path / "small", repack_cache_limit=1)
    assert "--repack-cache-limit" in capfd.readouterr().err


@LINUX
def test_locked_weights_are_locked_or_refused_in_words(path: Path) -> None:
    plain = words(path)
    model = None
    try:
        model = Model.load(path, threads=1, mlock=True)
        status = Path("/proc/self/status").read_text()
        locked = next(line for line in status.splitlines() if line.startswith("VmLck"))
        assert int(locked.split()[1]) > 0
    except ContextError as error:
        assert str(error).startswith("--mlock: the weights take")
    finally:
        if model is not None:
            model.close()
    assert words(path) == plain


class RefusingLibrary:
    """A C library whose locks fail."""

    def __init__(self, code: int):
        self.code = code

    def mlock2(self, *_: object) -> int:
        ctypes.set_errno(errno.ENOSYS)  # an old kernel: mlock is asked next
        return -1

    def mlock(self, *_: object) -> int:
        ctypes.set_errno(self.code)
        return -1


@LINUX
@pytest.mark.parametrize(
    ("limit", "message"),
    [(8 << 20, "may lock 8 MiB; raise the limit"), (None, "would not lock them")],
)
def test_a_refused_lock_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, message: str
) -> None:
    monkeypatch.setattr(mapping.ctypes, "CDLL", lambda *_, **__: RefusingLibrary(errno.ENOMEM))
    monkeypatch.setattr(mapping, "_lock_limit", lambda: limit)
    with pytest.raises(ContextError, match=message) as caught:
        mapping.lock(mapping.Mapping(400 << 20))
    assert "the weights take 400 MiB" in str(caught.value)
    assert "leave --mlock out" in str(caught.value)


def test_released_tensors_of_a_file_in_memory_are_gone(path: Path) -> None:
    with GGUFFile.open(path, in_memory=True) as file, GGUFFile.open(path) as mapped:
        name = "token_embd.weight"
        file.advise_dontneed(name)
        assert np.array_equal(file.data(name), mapped.data(name)), "advice must not lose bytes"
        with pytest.raises(ValueError, match="read-only"):
            file.data(name)[0] = 1
        file.release(name)
        with pytest.raises(InternalError, match="was released"):
            file.data(name)
        mapped.release(name)
        assert len(mapped.data(name))


def test_a_file_that_shrinks_while_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinetic.ir.gguf._read_into", lambda mapped, file: 30)
    with pytest.raises(ModelFileError, match="is it still being written"):
        GGUFFile.open(path, in_memory=True)
