"""Which source is believed, and how much: from how its guesses have done lately.

Every source guesses every token, whether the guess is run or not, and is told what came. So
what a source is worth is known without spending a row on it, and text that cannot be guessed
costs a few lookups a token. Chances are kept by how long the source has been right in a row:
a guess after sixteen that were right is another thing than one after two.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.runtime.drafting.sources import Source

MAX_DRAFT = 31
"""Guesses run at once, at most."""
_BUCKETS = (0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7)
"""Bucket of a match of 0, 1, 2, ... tokens; the last one is of that many and more."""
_PRIOR = (0.2, 0.2, 0.2, 0.35, 0.55, 0.75, 0.85, 0.95)
"""What a bucket's chance is before anything is known of this text."""
_WEIGHT = 4.0
"""Guesses that the prior counts for."""
_FADE = 0.95
"""What an observation counts for after the next one of its bucket."""


class _Record:
    """How a source's guesses did in this answer."""

    def __init__(self, source: Source):
        self.source = source
        self._right = [p * _WEIGHT for p in _PRIOR]
        self._seen = [_WEIGHT] * len(_PRIOR)

    def chance(self, match: int) -> float:
        """The chance that a guess after `match` right ones is right."""
        bucket = _BUCKETS[min(match, len(_BUCKETS) - 1)]
        return self._right[bucket] / self._seen[bucket]

    def observe(self, match: int, right: bool) -> None:
        """A guess turned out right or wrong."""
        bucket = _BUCKETS[min(match, len(_BUCKETS) - 1)]
        self._right[bucket] = self._right[bucket] * _FADE + right
        self._seen[bucket] = self._seen[bucket] * _FADE + 1


class Drafter:
    """Guesses for one answer."""

    def __init__(self, sources: Sequence[Source]):
        self._records = [_Record(source) for source in sources]

    def push(self, tokens: Sequence[int]) -> None:
        """`tokens` is the sequence so far; its last one is new."""
        for record in self._records:
            source = record.source
            guess = source.next()
            if guess is not None:
                record.observe(source.match, guess == tokens[-1])
            source.push(tokens)

    def draft(self, limit: int) -> tuple[list[int], list[float]]:
        """Up to `limit` guesses by the source that is most likely right, and for each the
        chance that it and all before it are."""
        best, most = None, 0.0
        for record in self._records:
            if record.source.next() is not None:
                chance = record.chance(record.source.match)
                if chance > most:
                    best, most = record, chance
        if best is None:
            return [], []
        tokens = best.source.guess(min(limit, MAX_DRAFT))
        chances, all_right = [], 1.0
        for i in range(len(tokens)):
            all_right *= best.chance(best.source.match + i)
            chances.append(all_right)
        return tokens, chances
