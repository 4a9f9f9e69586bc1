"""Philox-4x32-10: random numbers as a function of a key and a counter.

No state runs along with an answer, so the number drawn for a token depends on its place
alone: drafting, rollback and batching cannot shift it.

*Source:* Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

Words4 = tuple[int, int, int, int]


def philox_4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Four random words for a counter of four words under a key of two."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (
            (product1 >> 32) ^ b ^ k0,
            product1 & _MASK,
            (product0 >> 32) ^ d ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return a, b, c, d


def uniform(seed: int, position: int, lane: int, choice: int) -> float:
    """The number in [0, 1) of a place in an answer (docs/arithmetic.md section 10).

    *Units:* `seed` is 64 bits, low word first in the key; the result is a multiple of
    2^-24, so it is exact in binary32.
    """
    counter = (position & _MASK, lane & _MASK, choice & _MASK, 0)
    word = philox_4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))[0]
    return float(word >> 8) * 2.0**-24
