"""Pair merging: both ways of running it equal the definition on hostile priorities too."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kinetic.text.merging import PairTable, _Chain, merge


class Table(PairTable):
    def __init__(self, ranks: dict[tuple[bytes, bytes], int], alphabet: bytes) -> None:
        super().__init__([bytes((b,)) for b in alphabet])
        self.ranks = ranks

    def priority(self, left: bytes, right: bytes) -> int:
        return self.ranks.get((left, right), -1)


def by_definition(text: bytes, ranks: dict[tuple[bytes, bytes], int]) -> list[bytes]:
    """Queue of (rank, place, text); an entry holds while two symbols there spell its text."""
    symbols: list[bytes | None] = [bytes((b,)) for b in text]
    queue: list[tuple[int, int, bytes]] = []

    def neighbours(i: int) -> int | None:
        return next((j for j in range(i + 1, len(symbols)) if symbols[j] is not None), None)

    def add(i: int | None, j: int | None) -> None:
        if i is None or j is None:
            return
        left, right = symbols[i], symbols[j]
        assert left is not None and right is not None
        if (left, right) in ranks:
            queue.append((ranks[left, right], i, left + right))

    for i in range(len(symbols) - 1):
        add(i, i + 1)
    while queue:
        entry = min(queue)
        queue.remove(entry)
        _, i, joined = entry
        j = neighbours(i)
        if symbols[i] is None or j is None or symbols[i] + symbols[j] != joined:  # type: ignore[operator]
            continue
        symbols[i], symbols[j] = joined, None
        before = next((k for k in range(i - 1, -1, -1) if symbols[k] is not None), None)
        add(before, i)
        add(i, neighbours(i))
    return [s for s in symbols if s is not None]


PIECE = st.text("ab", min_size=1, max_size=3).map(str.encode)
RANKS = st.lists(st.tuples(PIECE, PIECE), min_size=1, max_size=14, unique=True)


@given(RANKS, st.text("ab", max_size=40), st.randoms())
@settings(max_examples=300, deadline=None)
def test_both_ways_equal_the_definition(pairs, text, rng) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(pairs)))
    rng.shuffle(order)
    ranks = dict(zip(pairs, order, strict=True))
    table = Table(ranks, b"ab")
    data = text.encode()
    want = by_definition(data, ranks)
    symbols = [b"ab".index(bytes((c,))) for c in data]
    if len(symbols) > 1:
        chain = _Chain(list(symbols), table)
        assert [table.texts[s] for s in chain.run_queue(chain.seed())] == want
        assert [table.texts[s] for s in _Chain(list(symbols), table).run_lists()] == want
    assert [table.texts[s] for s in merge(list(symbols), table)] == want


def test_moved_border_inside_a_queued_merge() -> None:
    # (a, bc) is queued, then (a, b) merges first: the queued text "abc" still stands.
    ranks = {(b"b", b"c"): 0, (b"a", b"bc"): 2, (b"a", b"b"): 1}
    table = Table(ranks, b"abc")
    assert [table.texts[s] for s in merge([0, 1, 2], table)] == [b"abc"]


def test_table_starts_afresh_but_keeps_its_alphabet() -> None:
    table = Table({(b"a", b"b"): 0}, b"ab")
    merge([0, 1], table)
    assert len(table.texts) == 3 and not table.trim()
    table._start()
    assert table.texts == [b"a", b"b"] and merge([0, 1], table) == [2]
