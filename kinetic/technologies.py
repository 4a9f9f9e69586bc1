"""What makes answers come faster without changing them, by the names that can be turned off."""

from __future__ import annotations

TECHNOLOGIES = ("rad1", "warm-start", "zero-wait", "shortlist", "torque", "convoy")
"""Guesses, prompt states, run-ahead, a smaller output layer, whole steps as one call, and steps
that requests share."""
