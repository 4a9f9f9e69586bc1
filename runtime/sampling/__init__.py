"""Sampling: logits in, one token out, the same for the same seed (`sampler.py`)."""

from kinetic.runtime.sampling.history import Mark
from kinetic.runtime.sampling.params import SamplingParams
from kinetic.runtime.sampling.sampler import Sampler

__all__ = ["Mark", "Sampler", "SamplingParams"]
