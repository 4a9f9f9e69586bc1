"""GPUs: what CUDA and Vulkan report, and why one cannot be used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU through one interface.

    *Units*: bytes, and bytes a second; `free` and `bandwidth` are 0 where nobody tells.
    """

    name: str
    api: str
    total: int
    driver: str
    free: int = 0
    bandwidth: int = 0
    software: bool = False
    """A driver that computes on the CPU."""


@dataclass(frozen=True)
class Probe:
    """What one interface reports: its GPUs, or the reason why there are none."""

    api: str
    gpus: tuple[Gpu, ...] = ()
    reason: str = ""


def probe_all() -> list[Probe]:
    """Ask CUDA, then Vulkan."""
    from kinetic.machine import cuda, vulkan

    return [cuda.probe(), vulkan.probe()]
