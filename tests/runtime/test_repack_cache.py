"""The cache of repacked weights: whatever happens to its folder, the words are the same."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import compile_for, outputs, plain_rows
from support.random_graphs import random_graph

from kinetic.runtime import repack_cache
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.devices.weights import LoadOptions
from kinetic.runtime.repack_cache import CacheEntry, entry_key

WEIGHTS = np.arange(1 << 16, dtype=np.uint32).view(np.uint8)
FILE_BYTES = 4096 + len(WEIGHTS)


def found(entry: CacheEntry) -> bool:
    got = entry.find(len(WEIGHTS))
    if got is not None:
        assert (got.bytes == WEIGHTS).all()
        assert got.address % 64 == 0
    return got is not None


def test_stored_then_found(tmp_path: Path) -> None:
    entry = CacheEntry(tmp_path / "deep" / "er", "k")
    assert not found(entry)
    assert entry.store(WEIGHTS) is None
    assert found(entry)
    assert [p.name for p in entry.folder.iterdir()] == ["k.repacked"]
    assert not found(CacheEntry(entry.folder, "other"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_entry_is_a_miss_and_goes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    entry = CacheEntry(tmp_path_factory.mktemp("cache"), "k")
    entry.store(WEIGHTS)
    whole = bytearray(entry.path.read_bytes())
    how = data.draw(st.sampled_from(["cut", "head", "weights", "longer", "other"]))
    if how == "cut":
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    elif how == "longer":
        whole += data.draw(st.binary(min_size=1, max_size=40))
    elif how == "other":
        whole = bytearray(data.draw(st.binary(max_size=80)))
    else:
        first, last = (0, 47) if how == "head" else (4096, len(whole) - 1)
        whole[data.draw(st.integers(first, last))] ^= data.draw(st.integers(1, 255))
    entry.path.write_bytes(whole)
    assert not found(entry)
    assert not entry.path.exists()
    assert entry.store(WEIGHTS) is None and found(entry)


def test_an_entry_under_another_key_is_a_miss(tmp_path: Path) -> None:
    one, two = CacheEntry(tmp_path, "one"), CacheEntry(tmp_path, "two")
    one.store(WEIGHTS)
    one.path.rename(two.path)
    assert not found(two)


@pytest.mark.parametrize("at", ["create", "write", "rename"])
def test_a_full_disk_is_told_and_leaves_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(*_: object, **__: object) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = {
        "create": (repack_cache.tempfile, "mkstemp"),
        "write": (repack_cache, "_write"),
        "rename": (repack_cache.os, "replace"),
    }[at]
    monkeypatch.setattr(*target, full)
    entry = CacheEntry(tmp_path, "k")
    message = entry.store(WEIGHTS)
    assert message and "could not be kept" in message and "No space left" in message
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert entry.store(WEIGHTS) is None and found(entry)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = CacheEntry(tmp_path / "file" / "folder", "k").store(WEIGHTS)
    assert message and "could not be kept" in message


def test_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    def entry(key: str) -> CacheEntry:
        return CacheEntry(tmp_path, key, 3 * FILE_BYTES)

    for age, key in enumerate(("c", "b", "a")):
        assert entry(key).store(WEIGHTS) is None
        old = time.time() - 1000 + age
        os.utime(entry(key).path, (old, old))
    assert found(entry("c"))  # used: no longer the oldest
    assert entry("d").store(WEIGHTS) is None
    assert [found(entry(key)) for key in "abcd"] == [True, False, True, True]
    assert entry("d").store(WEIGHTS) is None, "writing an entry again needs no room"
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) == 3 * FILE_BYTES


def test_weights_above_the_limit_are_not_kept(tmp_path: Path) -> None:
    kept = CacheEntry(tmp_path, "small", 2 * FILE_BYTES)
    kept.store(WEIGHTS)
    message = CacheEntry(tmp_path, "k", FILE_BYTES - 1).store(WEIGHTS)
    assert message and "--repack-cache-limit" in message
    assert found(kept), "and nothing was removed for them"


KILLED = """
import sys
import numpy as np
from pathlib import Path
from kinetic.runtime.repack_cache import CacheEntry
weights = np.arange(1 << 21, dtype=np.uint32).view(np.uint8)
print("ready", flush=True)
while True:
    CacheEntry(Path(sys.argv[1]), "k").store(weights)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
def test_a_killed_process_leaves_a_whole_entry_or_none(tmp_path: Path) -> None:
    for attempt in range(4):
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(0.013 * (attempt + 1))
            child.kill()
        entry = CacheEntry(tmp_path, "k")
        exists = entry.path.exists()
        assert (entry.find(1 << 23) is not None) == exists
    # Killed writers hold no lock, so the next one sweeps what they left.
    (tmp_path / ".k.abandoned.part").write_bytes(b"x")
    assert CacheEntry(tmp_path, "k").store(WEIGHTS) is None
    assert [p.name for p in tmp_path.iterdir()] == ["k.repacked"]


@pytest.mark.skipif(os.name == "nt", reason="no flock")
def test_a_file_that_is_being_written_is_not_litter(tmp_path: Path) -> None:
    import fcntl

    part = tmp_path / ".k.busy.part"
    with open(part, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert CacheEntry(tmp_path, "k").store(WEIGHTS) is None
        assert part.exists()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code shared by the tests of this file."""
    return tmp_path_factory.mktemp("objects")


def _load(folder: Path, objects: Path, barrier: object, out: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    found = _words(CacheEntry(folder, "k"), objects)
    out.put(found)  # type: ignore[attr-defined]


def _words(entry: CacheEntry | None, objects: Path) -> tuple[bool, dict[str, bytes]]:
    graph, memory = random_graph(8)
    program = compile_for("scalar", graph, objects, max_rows=4, max_outputs=4)
    load = LoadOptions(cache=entry)
    cpu = CpuDevice(program, memory, threads=1, n_ctx=64, n_pages=1, load=load)
    words = outputs(cpu, plain_rows(np.arange(4), wanted=[1]))
    cached = cpu._weights.cached
    cpu.close()
    return cached, {name: value.tobytes() for name, value in words.items()}


def test_cached_weights_give_the_same_words(tmp_path: Path, objects: Path) -> None:
    plain = _words(None, objects)
    entry = CacheEntry(tmp_path, "k")
    first, second = _words(entry, objects), _words(entry, objects)
    assert (plain[0], first[0], second[0]) == (False, False, True)
    assert plain[1] == first[1] == second[1]


def test_processes_that_load_the_same_at_once_agree(tmp_path: Path, objects: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, out = spawn.Barrier(3), spawn.Queue()
    workers = [
        spawn.Process(target=_load, args=(tmp_path, objects, barrier, out)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    words = [out.get(timeout=120)[1] for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert words.count(words[0]) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["k.repacked"]


def test_keys_keep_their_parts_apart() -> None:
    assert len({entry_key("ab", "c"), entry_key("a", "bc"), entry_key("abc")}) == 3
