"""Kinetic: a local inference engine built as a compiler."""

from kinetic._version import __version__

__all__ = ["__version__"]
