"""Kinetic: a local inference engine built as a compiler.

    from kinetic import Model, SamplingParams

The names load the engine when they are first asked for; `import kinetic` alone costs
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._version import __version__

if TYPE_CHECKING:
    from kinetic.api import Model, Piece, SamplingParams, Stats

__all__ = ["Model", "Piece", "SamplingParams", "Stats", "__version__"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from kinetic import api

        return getattr(api, name)
    raise AttributeError(f"module 'kinetic' has no attribute {name!r}")
