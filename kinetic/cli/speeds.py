"""How fast an answer came, as commands tell it."""

from __future__ import annotations


def speed(tokens: int, steps: int, seconds: float) -> str:
    """So many tokens, in so many steps of so much time."""
    counted = f"{tokens} token{'' if tokens == 1 else 's'}"
    return f"{counted} at {steps / seconds:.1f} tok/s" if steps > 0 and seconds > 0 else counted


def answer_speed(tokens: int, seconds: float) -> str:
    """The speed of an answer: its prompt's last step gives the first token, so the clock sees
    one step less."""
    return speed(tokens, tokens - 1, seconds)
