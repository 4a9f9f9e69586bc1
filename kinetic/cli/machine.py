"""What this machine is, in the words a benchmark needs beside its numbers."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def cpu_name() -> str:
    """The processor's own name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_line() -> str:
    """One line: processor, logical CPUs this process may use, memory, system."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{cpu_name()}, {usable} CPUs, {memory:.0f} GiB, {system}"


def peak_memory() -> int:
    """The most memory this process has held so far.

    Units: bytes, of resident memory, mapped model pages included.
    """
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
