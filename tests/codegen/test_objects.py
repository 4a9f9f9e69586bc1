"""The cache of machine code: whatever happens to its folder, the answer is the same."""

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
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import compile_for, device, outputs, plain_rows
from support.random_graphs import random_graph

from kinetic.codegen import objects
from kinetic.codegen.objects import cached_object, object_key
from kinetic.codegen.targets.llvm_x86 import cpu_target

OBJECT = bytes(range(256)) * 40


def never() -> bytes:
    raise AssertionError("a good entry must not be made again")


def entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix == ".o")


def test_made_once_then_read(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "kernels"
    assert cached_object(folder, "k", lambda: OBJECT) == OBJECT
    assert cached_object(folder, "k", never) == OBJECT
    assert [p.name for p in folder.iterdir()] == ["k.o"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_entry_is_made_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    cached_object(folder, "k", lambda: OBJECT)
    path = folder / "k.o"
    whole = path.read_bytes()
    how = data.draw(st.sampled_from(["cut", "flip", "longer", "other"]))
    if how == "cut":
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    elif how == "flip":
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[at] ^ data.draw(st.integers(1, 255))
        path.write_bytes(whole[:at] + bytes([changed]) + whole[at + 1 :])
    elif how == "longer":
        path.write_bytes(whole + data.draw(st.binary(min_size=1, max_size=40)))
    else:
        path.write_bytes(data.draw(st.binary(max_size=80)))
    assert cached_object(folder, "k", lambda: OBJECT) == OBJECT
    assert path.read_bytes() == whole, "and written again"
    assert cached_object(folder, "k", never) == OBJECT


def test_an_empty_object_is_never_an_entry(tmp_path: Path) -> None:
    (tmp_path / "k.o").write_bytes(blake3(b"").digest())
    assert cached_object(tmp_path, "k", lambda: OBJECT) == OBJECT


@pytest.mark.parametrize("where", ["file", "under a file", "directory entry"])
def test_a_folder_that_cannot_be_used_costs_only_time(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "cache"
    if where == "file":
        folder.write_bytes(b"")
    elif where == "under a file":
        (tmp_path / "file").write_bytes(b"")
        folder = tmp_path / "file" / "cache"
    else:
        (folder / "k.o").mkdir(parents=True)
    for _ in range(2):
        assert cached_object(folder, "k", lambda: OBJECT) == OBJECT
    if where == "directory entry":
        assert [p.name for p in folder.iterdir()] == ["k.o"], "no litter"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
@pytest.mark.parametrize("link", [False, True])
def test_a_pipe_in_place_of_an_entry_is_a_miss(tmp_path: Path, link: bool) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe" if link else folder / "k.o")
    if link:
        (folder / "k.o").symlink_to(tmp_path / "pipe")
    code = (
        "import sys; from pathlib import Path; from kinetic.codegen.objects import cached_object;"
        "assert cached_object(Path(sys.argv[1]), 'k', lambda: b'made') == b'made'"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
    assert cached_object(folder, "k", never) == b"made", "and replaced"


def test_the_folder_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "KEEP_ENTRIES", 3)
    stale, fresh = tmp_path / ".k.stale", tmp_path / ".k.fresh"
    stale.write_bytes(b"of a killed process")
    os.utime(stale, (1.0, 1.0))
    fresh.write_bytes(b"of a process at work")
    (tmp_path / "other.txt").write_bytes(b"not ours")
    for age, key in enumerate(["a", "b", "c"]):
        cached_object(tmp_path, key, lambda: OBJECT)
        os.utime(tmp_path / f"{key}.o", (1000.0 + age, 1000.0 + age))
    cached_object(tmp_path, "a", never)
    cached_object(tmp_path, "d", lambda: OBJECT)
    assert [p.stem for p in entries(tmp_path)] == ["a", "c", "d"], "b was used longest ago"
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".o") == [
        ".k.fresh",
        "other.txt",
    ]
    monkeypatch.setattr(objects, "KEEP_BYTES", 2 * (len(OBJECT) + 32))
    cached_object(tmp_path, "e", lambda: OBJECT)
    assert len(entries(tmp_path)) == 2
    monkeypatch.setattr(objects, "KEEP_BYTES", 1)
    assert cached_object(tmp_path, "f", lambda: OBJECT) == OBJECT
    assert [p.stem for p in entries(tmp_path)] == ["f"], "the newest stays, whatever its size"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_read_only_folder_costs_only_time(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert cached_object(tmp_path, "k", lambda: OBJECT) == OBJECT
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("at", ["write", "rename", "temporary file"])
def test_a_full_disk_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullFile:
        def __enter__(self) -> FullFile:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        write = full

    if at == "write":

        def fdopen(handle: int, *_: object) -> FullFile:
            os.close(handle)
            return FullFile()

        monkeypatch.setattr(objects.os, "fdopen", fdopen)
    elif at == "rename":
        monkeypatch.setattr(objects.os, "replace", full)
    else:
        monkeypatch.setattr(objects.tempfile, "mkstemp", full)
    assert cached_object(tmp_path, "k", lambda: OBJECT) == OBJECT
    assert list(tmp_path.iterdir()) == [], "no litter"
    monkeypatch.undo()
    assert cached_object(tmp_path, "k", lambda: OBJECT) == OBJECT
    assert cached_object(tmp_path, "k", never) == OBJECT


def _compile(folder: Path, barrier: object, out: object) -> None:
    graph, _ = random_graph(5, 4)
    barrier.wait()  # type: ignore[attr-defined]
    program = compile_for("scalar", graph, folder)
    out.put(sorted(program.link()))  # type: ignore[attr-defined]


def test_processes_that_compile_the_same_at_once_agree(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, out = spawn.Barrier(8), spawn.Queue()
    workers = [spawn.Process(target=_compile, args=(tmp_path, barrier, out)) for _ in range(8)]
    for worker in workers:
        worker.start()
    found = [out.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert found.count(found[0]) == 8 and "pool_run" in found[0]
    (entry,) = tmp_path.iterdir()
    raw = entry.read_bytes()
    assert blake3(raw[32:]).digest() == raw[:32]


KILLED = """
import sys
from pathlib import Path
from kinetic.codegen.objects import cached_object
folder = Path(sys.argv[1])
number = 0
while True:
    size = 1 << 20
    cached_object(folder, f"k{number % 50}", lambda: bytes([number % 256]) * size)
    print(number, flush=True)
    number += 1
    (folder / f"k{number % 50}.o").unlink(missing_ok=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
def test_a_killed_process_leaves_whole_entries_or_none(tmp_path: Path) -> None:
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.011 * (attempt + 1))
        child.kill()
        child.wait()
        child.stdout.close()
        for path in entries(tmp_path):
            raw = path.read_bytes()
            assert len(raw) == 32 + (1 << 20) and blake3(raw[32:]).digest() == raw[:32]


def test_keys_tell_targets_kernels_and_sources_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        object_key("a", ["x", "y"]),
        object_key("b", ["x", "y"]),
        object_key("a", ["x"]),
        object_key("a", ["y", "x"]),
        object_key("a", ["xy"]),
    }
    assert len(keys) == 5
    before = object_key("a", ["x"])
    monkeypatch.setattr(objects, "source_digest", lambda: b"other sources")
    assert object_key("a", ["x"]) != before
    assert cpu_target("cpu-x86_64-scalar").key != cpu_target().key


def test_a_program_from_the_cache_gives_the_same_words(tmp_path: Path) -> None:
    graph, memory = random_graph(8)
    found = []
    for folder in (None, tmp_path, tmp_path):
        program = compile_for("scalar", graph, folder, max_rows=4, max_outputs=4)
        with device(program, memory, n_ctx=64) as cpu:
            found.append(outputs(cpu, plain_rows(np.arange(4), wanted=[1])))
    assert len(entries(tmp_path)) == 1
    for name, words in found[0].items():
        assert all((words.view(np.uint32) == f[name].view(np.uint32)).all() for f in found)
