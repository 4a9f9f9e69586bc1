"""Which source is believed, and how much: from how its guesses have done lately.

Every source guesses every token, whether the guess is run or not, and is told what came. So
what a source is worth is known without spending a row on it, and text that cannot be guessed
costs a few lookups a token. Chances are kept by how long the source has been right in a row:
a guess after sixteen that were right is another thing than one after two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class Draft(NamedTuple):
    """Guesses one after the other, and for each the chance that it and all before are right."""

    tokens: list[int]
    chances: list[float]

    def first(self, count: int) -> Draft:
        """The first so many."""
        return Draft(self.tokens[:count], self.chances[:count])


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

    def draft(self, limit: int, branches: int = 1) -> list[Draft]:
        """Up to `limit` guesses by the source that is most likely right; then, up to `branches`
        in all, by others that guess something else next."""
        found, firsts, left = list[Draft](), set[int](), 1.0
        known = [r for r in self._records if r.source.next() is not None]
        known.sort(key=lambda r: -r.chance(r.source.match))
        for record in known:
            tokens = record.source.guess(min(limit, MAX_DRAFT))
            if len(found) == branches or not tokens:
                break
            if tokens[0] in firsts:
                continue
            firsts.add(tokens[0])
            chances, all_right = [], left  # at most one of the branches is right
            for i in range(len(tokens)):
                all_right *= record.chance(record.source.match + i)
                chances.append(all_right)
            left -= chances[0]
            found.append(Draft(tokens, chances))
        return found
