"""A text with an index of its n-grams, and a reader that follows along in it.

*Source:* prompt lookup decoding (Saxena 2023); the index makes each token cost the same,
however long the text is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ORDERS = (4, 2)
"""Lengths of the n-grams that are looked up, the most telling first."""
_LOOK_BACK = 16
"""A match is not measured further back."""


class Text:
    """Tokens, and where each of their n-grams ended last."""

    def __init__(self, orders: Sequence[int] = ORDERS):
        self.tokens: list[int] = []
        self._orders = tuple(orders)
        self._ends: list[dict[int, int]] = [{} for _ in self._orders]

    def append(self, token: int) -> None:
        """One more token."""
        tokens = self.tokens
        tokens.append(token)
        count = len(tokens)
        for order, ends in zip(self._orders, self._ends, strict=True):
            if count >= order:
                # A hash stands for the n-gram: where two share one, a guess is wrong.
                ends[hash(tuple(tokens[count - order :]))] = count

    def extend(self, tokens: Iterable[int]) -> None:
        """More tokens."""
        for token in tokens:
            self.append(token)

    def find(self, recent: Sequence[int]) -> tuple[int, int]:
        """Where what followed the last occurrence of `recent`'s end begins, and how many tokens
        match there; (0, 0) if it never occurred."""
        for order, ends in zip(self._orders, self._ends, strict=True):
            if len(recent) >= order:
                at = ends.get(hash(tuple(recent[len(recent) - order :])))
                if at is not None:
                    return at, self._match(at, recent)
        return 0, 0

    def _match(self, at: int, recent: Sequence[int]) -> int:
        most = min(at, len(recent), _LOOK_BACK)
        for back in range(1, most + 1):
            if self.tokens[at - back] != recent[len(recent) - back]:
                return back - 1
        return most


class Reader:
    """Follows a sequence along in a text: its place there is where the sequence's last tokens
    stood before, and what comes next there is the guess.

    `match` tells how many tokens have agreed in a row, 0 just after one that did not.
    """

    def __init__(self, text: Text):
        self.text = text
        self.match = 0
        self._at: int | None = None

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        at, tokens = self._at, self.text.tokens
        if at is None or at >= len(tokens):
            return []
        found = tokens[at : at + count]
        period = len(tokens) - at
        while len(found) < count:  # the text repeats itself, and goes on doing so
            found.append(found[len(found) - period])
        return found

    def next(self) -> int | None:
        """The guess for the next token alone."""
        at, tokens = self._at, self.text.tokens
        return tokens[at] if at is not None and at < len(tokens) else None

    def push(self, recent: Sequence[int]) -> None:
        """The sequence has one more token, the last of `recent`."""
        if self._at is not None and self.next() == recent[-1]:
            self._at += 1
            self.match += 1
            return
        at, match = self.text.find(recent)
        if match:
            self._at, self.match = at, match
        elif self._at is not None and self.match:
            # One token was put in the place of another, perhaps: read on behind it.
            self._at, self.match = self._at + 1, 0
        else:
            self._at, self.match = None, 0
