"""How fast an answer came, as commands tell it."""

from __future__ import annotations


def speed(tokens: int, steps: int, seconds: float) -> str:
    """So many tokens, in so many steps of so much time."""
    rate = f"{steps / seconds:.1f}" if steps > 0 and seconds > 0 else "-"
    return f"{tokens} token{'' if tokens == 1 else 's'} at {rate} tok/s"


def answer_speed(tokens: int, seconds: float) -> str:
    """The speed of an answer: its prompt's last step gives the first token, so the clock sees
    one step less."""
    return speed(tokens, tokens - 1, seconds)
