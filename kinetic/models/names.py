"""From a typed name to a model: `qwen3:4b`, `org/repo:Q4_K_M`, a file's name without .gguf."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from kinetic.errors import ModelFileError
from kinetic.models.found import SUFFIXES, FoundModel

_NEAR = 0.55


def find_named(typed: str, models: Sequence[FoundModel]) -> FoundModel | None:
    """The model of that name, None where none has it.

    Upper and lower case are the same. A bare Ollama name takes its tag `latest`, or its only
    tag; a repository with one file needs no quantization.

    *Raises*: ModelFileError for a name that several models have, and for a download that is
    not finished.
    """
    wanted = _plain(typed)
    exact = [m for m in models if wanted in map(str.lower, m.names)]
    if not exact:
        tagged = [m for m in models if any(_base(n) == wanted for n in m.names)]
        latest = [m for m in tagged if any(n.lower() == f"{wanted}:latest" for n in m.names)]
        exact = latest or tagged
        if len({m.path for m in exact}) > 1:
            raise ModelFileError(
                f"{typed} has several files; add one of "
                f"{', '.join(':' + m.name.rpartition(':')[2] for m in exact)}."
            )
    whole = [m for m in exact if not m.unfinished]
    if whole:
        return whole[0]
    if exact:
        raise ModelFileError(f"{typed} is an unfinished download: {exact[0].unfinished}.")
    return None


def closest(typed: str, models: Sequence[FoundModel], limit: int = 3) -> list[str]:
    """Names near a typed one, the nearest first."""
    wanted = _plain(typed)
    scored: dict[str, float] = {}
    for model in models:
        if not model.unfinished:
            scored[model.name] = max(_nearness(wanted, n.lower()) for n in model.names)
    near = [name for name, score in scored.items() if score >= _NEAR]
    return sorted(near, key=lambda name: (-scored[name], name))[:limit]


def _nearness(wanted: str, name: str) -> float:
    if not wanted:
        return 0.0
    # A piece of a name ("qwen3", "coder") is nearer than its share of the letters says.
    inside = 0.7 if len(wanted) >= 3 and wanted in name else 0.0
    return max(inside, SequenceMatcher(None, wanted, name).ratio())


def _plain(typed: str) -> str:
    lower = typed.strip().lower()
    for suffix in SUFFIXES:
        lower = lower.removesuffix(suffix)
    return lower


def _base(name: str) -> str:
    return name.rpartition(":")[0].lower()
