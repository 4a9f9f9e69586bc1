"""CPUs that may be used: control groups as files, affinity as the system has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic.runtime import cpus
from kinetic.runtime.cpus import cgroup_quota, default_threads, usable_cpus


def group(root: Path, path: str, cpu_max: str) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(cpu_max)


def test_no_files_no_limit(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path, "/") is None
    assert cgroup_quota(tmp_path / "absent", "/a/b") is None


@pytest.mark.parametrize(
    "text, limit",
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2.0),
        ("50000 100000", 0.5),
        ("150000 100000 extra", 1.5),
        ("", None),
        ("max", None),
        ("many 100000", None),
        ("100000 0", None),
        ("1.5 2", None),
    ],
)
def test_version_2(tmp_path: Path, text: str, limit: float | None) -> None:
    group(tmp_path, "a", text)
    assert cgroup_quota(tmp_path, "/a") == limit


def test_the_tightest_of_all_parents_counts(tmp_path: Path) -> None:
    group(tmp_path, "a/b/c", "max 100000")
    group(tmp_path, "a/b", "300000 100000")
    group(tmp_path, "a", "200000 100000")
    group(tmp_path, "", "800000 100000")
    group(tmp_path, "elsewhere", "10000 100000")
    assert cgroup_quota(tmp_path, "/a/b/c") == 2.0
    assert cgroup_quota(tmp_path, "/a/b/gone") == 2.0
    assert cgroup_quota(tmp_path, "/") == 8.0


@pytest.mark.parametrize(
    "quota, period, limit",
    [("-1", "100000", None), ("250000", "100000", 2.5), ("100000", "0", None), ("x", "1", None)],
)
def test_version_1(tmp_path: Path, quota: str, period: str, limit: float | None) -> None:
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text(period)
    assert cgroup_quota(tmp_path, "/") == limit


@given(st.binary(max_size=30))
def test_no_bytes_in_a_file_stop_the_program(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    root = tmp_path_factory.mktemp("cgroup")
    (root / "cpu.max").write_bytes(text)
    found = cgroup_quota(root, "/")
    assert found is None or isinstance(found, float)


def test_a_group_outside_of_the_root_is_not_followed(tmp_path: Path) -> None:
    group(tmp_path, "", "400000 100000")
    assert cgroup_quota(tmp_path, "/../..") in (None, 4.0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_affinity_is_respected() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cpus() == [min(before)] and default_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    "quota, threads", [(None, 8), (0.3, 1), (1.0, 1), (1.5, 2), (6.0, 6), (64.0, 8), (0.0, 1)]
)
def test_threads_are_cpus_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, threads: int
) -> None:
    monkeypatch.setattr(cpus, "usable_cpus", lambda: list(range(8)))
    monkeypatch.setattr(cpus, "cgroup_quota", lambda: quota)
    assert default_threads() == threads
