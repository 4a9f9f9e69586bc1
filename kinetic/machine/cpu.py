"""The processor: its name and the instructions that kernels need."""

from __future__ import annotations

import os
import platform
from pathlib import Path

FEATURES = ("avx2", "fma", "f16c")
"""What the fast kernels need, as `kinetic doctor` shows it."""


def cpu_name() -> str:
    """The processor's own name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_features() -> dict[str, bool]:
    """Whether the processor has each of `FEATURES`, and AVX-512 with VNNI."""
    from llvmlite import binding

    host = binding.get_host_cpu_features()
    return {name: bool(host.get(name, False)) for name in (*FEATURES, "avx512vnni")}


def cpu_threads() -> int:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def system_name() -> str:
    """The operating system with its version."""
    if platform.system() == "Linux":
        try:
            release = platform.freedesktop_os_release()
            return f"{release.get('PRETTY_NAME', 'Linux')} (kernel {platform.release()})"
        except OSError:
            pass
    return f"{platform.system()} {platform.release()} ({platform.version()})"
