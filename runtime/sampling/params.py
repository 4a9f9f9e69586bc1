"""The settings of the sampler, their defaults and their ranges, as llama.cpp has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from kinetic.errors import ModelFileError, UsageError

METADATA_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
}
"""What a model file may recommend. `general.sampling.sequence` is not followed: the order
of the samplers is fixed."""


DRY_BREAKERS = ("\n", ":", '"', "*")
"""Texts that end a repetition for DRY unless others are given, as in llama.cpp."""


@dataclass(frozen=True)
class SamplingParams:
    """Everything that decides which token follows, given the logits.

    *Units:* `temperature` 0 picks the likeliest token; `top_k` 0 or below keeps all;
    `typical_p`, `top_p` 1 and `min_p`, `top_n_sigma` 0 are off; a `*_last_n` of -1 means the
    whole context, 0 none; a `logit_bias` of -inf bans a token; `seed` None asks for a fresh
    one. `dry_sequence_breakers` are texts, or sequences of token ids; None stands for
    `DRY_BREAKERS`. Whoever knows the tokenizer turns texts into ids before sampling.
    *Raises:* UsageError for a value out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str | tuple[int, ...], ...] | None = None
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in _WHOLE:
            _require_whole(name, getattr(self, name))
        for name, (low, high) in _RANGES.items():
            _require_range(name, getattr(self, name), low, high)
        if self.repeat_penalty == 0:
            raise UsageError("The setting repeat_penalty must be above 0; 1 is none.")
        if self.seed is not None:
            _require_whole("seed", self.seed)
            _require_range("seed", self.seed, 0, 2**64 - 1)
        for token, bias in self.logit_bias.items():
            _require_whole("a token of logit_bias", token)
            if math.isnan(bias) or bias == math.inf or token < 0:
                raise UsageError(
                    f"The logit bias {bias} of token {token} makes no sense; "
                    "give a finite number, or -inf to ban a token."
                )
        if any(len(breaker) == 0 for breaker in self.dry_sequence_breakers or ()):
            raise UsageError("A DRY sequence breaker is empty; leave it out.")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> SamplingParams:
        """The defaults with a model file's `general.sampling.*` on top.

        *Raises:* ModelFileError where the file recommends what cannot be.
        """
        found: dict[str, object] = {}
        for key, name in METADATA_KEYS.items():
            if key in metadata:
                found[name] = _number_of(key, metadata[key], whole=name in _WHOLE)
        try:
            return replace(cls(), **found)  # type: ignore[arg-type]
        except UsageError as error:
            raise ModelFileError(f"In the file's general.sampling metadata: {error}") from error

    def with_overrides(self, **changes: object) -> SamplingParams:
        """These settings with some replaced; a change to None is no change.

        *Raises:* UsageError for an unknown name or a value out of range.
        """
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise UsageError(f"There is no sampling setting called {name}.")
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **given)  # type: ignore[arg-type]

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Whether the repeat, presence or frequency penalty does anything."""
        off = self.repeat_penalty == 1 and self.presence_penalty == 0 == self.frequency_penalty
        return self.repeat_last_n != 0 and not off

    @property
    def dry(self) -> bool:
        """Whether DRY does anything."""
        return self.dry_multiplier != 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0


_WHOLE = ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n", "mirostat")
_ANY = 1e30
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, _ANY),
    "top_k": (-_ANY, _ANY),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-_ANY, _ANY),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "repeat_penalty": (0, _ANY),
    "repeat_last_n": (-1, _ANY),
    "presence_penalty": (-_ANY, _ANY),
    "frequency_penalty": (-_ANY, _ANY),
    "dry_multiplier": (0, _ANY),
    "dry_base": (0, _ANY),
    "dry_allowed_length": (0, _ANY),
    "dry_penalty_last_n": (-1, _ANY),
    "mirostat": (0, 2),
    "mirostat_tau": (0, _ANY),
    "mirostat_eta": (0, _ANY),
}


def _require_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"The setting {name} must be a whole number, not {value!r}.")


def _require_range(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"The setting {name} must be a number, not {value!r}.")
    if not low <= value <= high:
        if high >= _ANY:
            wanted = "a finite number" if low <= -_ANY else f"at least {low}"
        else:
            wanted = f"between {low} and {high}"
        raise UsageError(f"The setting {name} must be {wanted}, not {value}.")


def _number_of(key: str, value: object, *, whole: bool) -> float | int:
    """A metadata value as a plain Python number."""
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelFileError(f"The file's {key} must be a number, not {value!r}.")
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
