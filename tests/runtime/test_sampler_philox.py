"""Philox against the known answers of its authors."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.runtime.philox import philox_4x32, uniform

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words) -> None:  # type: ignore[no-untyped-def]
    assert philox_4x32(counter, key) == words


def test_uniform_is_the_contracts_layout() -> None:
    seed = 0x123456789ABCDEF0
    word = philox_4x32((7, 1, 3, 0), (0x9ABCDEF0, 0x12345678))[0]
    assert uniform(seed, 7, 1, 3) == (word >> 8) / 2**24


def test_places_lanes_choices_and_seeds_all_differ() -> None:
    places = [
        (s, p, lane, c) for s in (0, 1, 1 << 40) for p in (0, 1) for lane in (0, 1) for c in (0, 1)
    ]
    draws = {uniform(*place) for place in places}
    assert len(draws) == len(places)


def test_uniform_numbers_are_uniform() -> None:
    draws = np.array([uniform(3, position, 0, 0) for position in range(20_000)])
    assert draws.min() >= 0 and draws.max() < 1
    assert np.array_equal(draws, draws.astype(np.float32))
    counts = np.bincount((draws * 50).astype(int), minlength=50)
    chi_square = ((counts - 400) ** 2 / 400).sum()
    assert chi_square < 90  # 49 degrees of freedom: one run in 3000 passes this
