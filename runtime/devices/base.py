"""What the engine asks of a device, and what a device asks of a model file."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kinetic.ir.program import Program
from kinetic.runtime.rows import Rows


class TensorInfo(Protocol):
    """Shape (rows first) and format number of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def type_id(self) -> int: ...


class TensorSource(Protocol):
    """A model file, as far as a device needs it (`ir.gguf.GGUFFile`)."""

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, mapped or in memory."""

    def advise_dontneed(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Bytes `start` to `stop` of the tensor will not be read again soon."""

    def release(self, name: str) -> None:
        """The tensor will not be read again at all."""


class Device(Protocol):
    """A program loaded with its weights, caches and threads."""

    program: Program
    n_slots: int
    """Slots of recurrent state, of `program.slot_bytes` each."""

    def step(self, rows: Rows) -> None:
        """Run the rows: write their cache slots, compute the wanted outputs."""

    def output(self, name: str, count: int) -> npt.NDArray[np.float32]:
        """The first `count` rows of an output of the last step; valid until the next."""

    def read_page(self, page: int) -> npt.NDArray[np.uint8]:
        """A copy of what a page holds in all caches."""

    def write_page(self, page: int, content: npt.NDArray[np.uint8]) -> None:
        """Put back what `read_page` gave, into this page or another."""

    def copy_page(self, source: int, target: int) -> None:
        """Make a page hold what another one does, in all caches."""

    def read_state(self, slot: int) -> npt.NDArray[np.uint8]:
        """A copy of what a slot of recurrent state holds."""

    def write_state(self, slot: int, state: npt.NDArray[np.uint8]) -> None:
        """Put back what `read_state` gave, into this slot or another."""

    def copy_state(self, source: int, target: int) -> None:
        """Make a slot hold what another one does."""

    def close(self) -> None:
        """Give threads and memory back."""
