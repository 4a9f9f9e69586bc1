"""The one place that states Kinetic's version."""

__version__ = "0.1.0"
