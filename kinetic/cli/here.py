"""This machine as `doctor`, `fit`, `plan` and `can-run` see it: what a model may use, how fast."""

from __future__ import annotations

from dataclasses import dataclass

from kinetic.machine.gpu import Gpu, Probe, probe_all
from kinetic.machine.memory import Memory, memory, read_speed
from kinetic.models.choice import Budget

WORK_ROOM = 1.10
"""Memory beside a model's weights for a context and for work, as a share of the weights, where
the file is not at hand to tell exactly."""


@dataclass(frozen=True)
class Here:
    """*Units*: bytes, `bandwidth` in bytes a second."""

    memory: Memory
    threads: int
    bandwidth: float
    probes: tuple[Probe, ...]

    @property
    def gpus(self) -> list[Gpu]:
        """GPUs that a model could run on."""
        return [gpu for probe in self.probes for gpu in probe.gpus if not gpu.software]

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes of weights run from this machine's memory."""
        return nbytes * WORK_ROOM <= self.memory.total


def look(threads: int | None = None, *, measure: bool = True) -> Here:
    """Measure and ask; takes about a third of a second."""
    from kinetic.runtime.cpus import default_threads

    threads = threads or default_threads()
    speed = read_speed(threads) if measure else 0.0
    return Here(memory(), threads, speed, tuple(probe_all()))


def budget(here: Here) -> Budget:
    """How large a model to download: a GPU's free memory, or half of the memory that is free."""
    free = max((gpu.free or gpu.total for gpu in here.gpus if can_use(gpu)), default=0)
    if free:
        return Budget(free, "the GPU's free memory")
    return Budget(here.memory.available // 2, "half the free memory")


def can_use(gpu: Gpu) -> bool:
    """Whether this version of Kinetic runs models on this GPU."""
    return gpu.api in usable_apis()


def usable_apis() -> tuple[str, ...]:
    """The interfaces through which this version runs models; the CPU always does."""
    return ()
