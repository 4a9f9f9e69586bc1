"""How many CPUs this process may really use: affinity and cgroup quota respected."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus() -> list[int]:
    """The CPU numbers this process may run on (all of them where that is unknown)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> float | None:
    """CPUs that the control group allows, None without a limit.

    Reads cgroup v2's `cpu.max` of this process's group and its parents, and v1's
    `cpu.cfs_quota_us`; the tightest counts.
    """
    limits = []
    for folder in _group_folders(root, own):
        try:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
            if quota != "max":
                limits.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            pass
    try:
        v1 = root / "cpu"
        quota_us = int((v1 / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            limits.append(quota_us / int((v1 / "cpu.cfs_period_us").read_text()))
    except (OSError, ValueError, ZeroDivisionError):
        pass
    return min(limits, default=None)


def _group_folders(root: Path, own: str | None) -> list[Path]:
    if own is None:
        try:
            lines = Path("/proc/self/cgroup").read_text().splitlines()
            own = next((line[3:] for line in lines if line.startswith("0::")), "/")
        except OSError:
            own = "/"
    folder = root / own.strip("/")
    folders = [folder]
    while folder != root and root in folder.parents:
        folder = folder.parent
        folders.append(folder)
    return folders


def default_threads() -> int:
    """Threads to use when the user names none."""
    cpus, quota = len(usable_cpus()), cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))
