"""What both GPU test runners know about a kernel's arguments."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from kinetic.codegen.kernels.builder import F32, I32, GpuCode, Kernel, Slot

Number = int | float


class Runner(Protocol):
    """A way to run a kernel: Vulkan, or interpreted PTX."""

    def code(self, kernel: Kernel) -> GpuCode:
        """The kernel, compiled once."""

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        buffers: Mapping[str, np.ndarray],
        params: Mapping[str, Number],
    ) -> None:
        """Run it; what it wrote lands in the writeable arrays of `buffers`."""


def pack_params(slots: Sequence[Slot], params: Mapping[str, Number]) -> bytes:
    """Parameters in their declared order, four bytes each.

    *Raises*: `ValueError` where the names are not exactly those of the kernel.
    """
    if set(params) != {slot.name for slot in slots}:
        raise ValueError(f"the kernel takes {[s.name for s in slots]}, not {list(params)}")
    codes = {F32: "<f", I32: "<i"}
    return b"".join(struct.pack(codes.get(s.type, "<I"), params[s.name]) for s in slots)
