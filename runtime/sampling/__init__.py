"""Sampling: logits in, one token out, the same for the same seed (`sampler.py`)."""

from kinetic.runtime.sampling.history import Mark
from kinetic.runtime.sampling.params import DRY_BREAKERS, SamplingParams
from kinetic.runtime.sampling.sampler import Sampler

__all__ = ["DRY_BREAKERS", "Mark", "Sampler", "SamplingParams"]
