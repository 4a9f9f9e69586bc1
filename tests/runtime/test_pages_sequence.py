"""Pages and sequences: never shared by mistake, never lost, as they were after a refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetic.errors import ContextError
from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.pages import PagePool
from kinetic.runtime.sequence import Sequence


def test_lowest_pages_are_given_first() -> None:
    pool = PagePool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ContextError, match=r"all 3 cache pages \(192 positions\)"):
        pool.take()
    pool.drop(1)
    assert pool.available == 1 and pool.take() == 1


def test_a_shared_page_is_free_when_its_last_holder_drops_it() -> None:
    pool = PagePool(1)
    page = pool.take()
    pool.share(page)
    pool.drop(page)
    assert pool.available == 0
    pool.drop(page)
    assert pool.available == 1


def test_slots_follow_the_page_table() -> None:
    pool = PagePool(5)
    pool.take()
    first, second = Sequence(pool, 200), Sequence(pool, 200)
    assert first.extend([0] * 10).tolist() == list(range(PAGE, PAGE + 10))
    second.extend([0] * PAGE)
    slots = first.extend([0] * 60)
    assert slots[:54].tolist() == list(range(PAGE + 10, 2 * PAGE))
    assert slots[54:].tolist() == list(range(3 * PAGE, 3 * PAGE + 6))


def test_the_tables_address_never_changes() -> None:
    sequence = Sequence(PagePool(20), 1000)
    address = sequence.table.ctypes.data
    for _ in range(9):
        sequence.extend([1] * 100)
        sequence.truncate(len(sequence) - 3)
        assert sequence.table.ctypes.data == address


def test_a_full_context_and_a_full_pool_leave_the_sequence_as_it_was() -> None:
    pool = PagePool(2)
    sequence = Sequence(pool, 300)
    sequence.extend(list(range(100)))
    for tokens, message in (
        ([7] * 201, "the context of 300 tokens is full: 301 are needed; raise it with -c"),
        ([7] * 29, "the cache has 0 free pages and 1 are needed"),
        ([7] * 200, "the cache has 0 free pages and 3 are needed"),
    ):
        with pytest.raises(ContextError, match=message):
            sequence.extend(tokens)
        assert sequence.tokens == list(range(100)) and pool.available == 0
    assert len(sequence.extend([7] * 28)) == 28


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["extend", "truncate", "close"]), st.integers(0, 260)
        ),
        max_size=40,
    )
)
def test_pages_of_live_positions_are_nobody_elses(
    actions: list[tuple[int, str, int]],
) -> None:
    pool = PagePool(9)
    sequences = [Sequence(pool, 320) for _ in range(4)]
    slots: list[list[int]] = [[], [], [], []]
    for who, action, number in actions:
        sequence = sequences[who]
        if action == "extend":
            before = (list(sequence.tokens), pool.available, sequence.table.copy())
            try:
                slots[who] += sequence.extend([who] * number).tolist()
            except ContextError:
                assert (sequence.tokens, pool.available) == before[:2]
                assert (sequence.table == before[2]).all()
        else:
            length = 0 if action == "close" else min(number, len(sequence))
            sequence.truncate(length)
            del slots[who][length:]
        held = [-(-len(s) // PAGE) for s in sequences]
        assert pool.available == 9 - sum(held)
        alive = [slot for mine in slots for slot in mine]
        assert len(set(alive)) == len(alive) and all(0 <= s < 9 * PAGE for s in alive)
        for mine, sequence in zip(slots, sequences, strict=True):
            at = np.arange(len(mine))
            assert len(sequence) == len(mine)
            assert (sequence.table[at // PAGE] * PAGE + at % PAGE == np.array(mine, int)).all()
