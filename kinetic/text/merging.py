"""Greedy pair merging, shared by byte-level BPE and SentencePiece.

Symbols are small integers; a `PairTable` says which two may merge, how soon, and into what.
The pair with the lowest priority merges first, the leftmost among equals. One rule decides
between rival merges and is easy to get wrong: a queued merge is still good if the text it
covers is unchanged, even when other merges have since moved the border inside that text.

*Source*: Sennrich et al. 2016, section 3.2, with the queue of llama.cpp's tokenizers.
"""

from __future__ import annotations

import heapq

# Packing of a queue entry: priority, then place, then the merged symbol. Python compares and
# unpacks one integer far faster than a tuple.
_SYMBOL_BITS = 24
_PLACE_BITS = 32
_SYMBOL_MASK = (1 << _SYMBOL_BITS) - 1
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_PRIORITY_SHIFT = _SYMBOL_BITS + _PLACE_BITS
_SYMBOL_LIMIT = 1 << 20  # symbols learned before the table starts afresh, bounding its memory

# Below this many symbols one queue beats many.
_SHORT = 64


class PairTable(dict[int, int]):
    """Maps `left << 24 | right` to `priority << 24 | merged`, or -1 when they do not merge.

    A subclass says how a text merges (`priority`); answers are kept. Symbols are learned by
    their bytes, and `known` holds the ones that must survive when the table starts afresh.
    """

    def __init__(self, known: list[bytes]) -> None:
        super().__init__()
        self._known = known
        self._start()

    def _start(self) -> None:
        self.clear()
        self.texts: list[bytes] = list(self._known)
        self.sizes: list[int] = [len(t) for t in self.texts]
        self._ids: dict[bytes, int] = {t: i for i, t in enumerate(self.texts)}

    def trim(self) -> bool:
        """Start afresh if too much was learned; only between texts. Tells if it did."""
        if len(self.texts) < _SYMBOL_LIMIT and len(self) < 4 * _SYMBOL_LIMIT:
            return False
        self._start()
        return True

    def symbol(self, text: bytes) -> int:
        """The number of a symbol, learned if new."""
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = len(self.texts)
            self.texts.append(text)
            self.sizes.append(len(text))
        return found

    def priority(self, left: bytes, right: bytes) -> int:
        """How late two texts merge, or -1 for never."""
        raise NotImplementedError

    def __missing__(self, pair: int) -> int:
        left, right = self.texts[pair >> _SYMBOL_BITS], self.texts[pair & _SYMBOL_MASK]
        rank = self.priority(left, right)
        result = -1 if rank < 0 else rank << _SYMBOL_BITS | self.symbol(left + right)
        self[pair] = result
        return result


def merge(symbols: list[int], table: PairTable) -> list[int]:
    """Merge a text's symbols until no pair merges.

    Takes time close to linear in the text: one queue for short texts; for long ones a list of
    places per priority, which is sorted once and walked.
    """
    if len(symbols) < 2:
        return symbols
    chain = _Chain(symbols, table)
    if len(symbols) <= _SHORT:
        return chain.run_queue(chain.seed())
    return chain.run_lists()


class _Chain:
    """A doubly linked list of symbols in arrays; a merged-away symbol is -1."""

    __slots__ = ("following", "previous", "symbols", "table")

    def __init__(self, symbols: list[int], table: PairTable) -> None:
        n = len(symbols)
        self.symbols = symbols
        self.table = table
        self.following = list(range(1, n + 1))
        self.previous = list(range(-1, n - 1))

    def seed(self) -> list[int]:
        """A heap of every pair that can merge at the start."""
        queue = []
        table = self.table
        left = self.symbols[0]
        for place in range(1, len(self.symbols)):
            right = self.symbols[place]
            found = table[left << _SYMBOL_BITS | right]
            if found >= 0:
                rank = found >> _SYMBOL_BITS
                queue.append(
                    rank << _PRIORITY_SHIFT | (place - 1) << _SYMBOL_BITS | (found & _SYMBOL_MASK)
                )
            left = right
        heapq.heapify(queue)
        return queue

    def result(self) -> list[int]:
        return [s for s in self.symbols if s >= 0]

    def run_queue(self, queue: list[int]) -> list[int]:
        """Merge with one heap; the definition that `run_lists` must equal."""
        symbols, table, sizes = self.symbols, self.table, self.table.sizes
        following, previous = self.following, self.previous
        n = len(symbols)
        pop, push = heapq.heappop, heapq.heappush
        while queue:
            entry = pop(queue)
            place = entry >> _SYMBOL_BITS & _PLACE_MASK
            left = symbols[place]
            if left < 0:
                continue
            after = following[place]
            if after >= n:
                continue
            merged = entry & _SYMBOL_MASK
            if sizes[left] + sizes[symbols[after]] != sizes[merged]:
                continue
            symbols[place] = merged
            symbols[after] = -1
            after = following[after]
            following[place] = after
            if after < n:
                previous[after] = place
                found = table[merged << _SYMBOL_BITS | symbols[after]]
                if found >= 0:
                    rank = found >> _SYMBOL_BITS
                    push(
                        queue,
                        rank << _PRIORITY_SHIFT | place << _SYMBOL_BITS | found & _SYMBOL_MASK,
                    )
            before = previous[place]
            if before >= 0:
                found = table[symbols[before] << _SYMBOL_BITS | merged]
                if found >= 0:
                    rank = found >> _SYMBOL_BITS
                    push(
                        queue,
                        rank << _PRIORITY_SHIFT | before << _SYMBOL_BITS | found & _SYMBOL_MASK,
                    )
        return self.result()

    def run_lists(self) -> list[int]:
        """Merge priority by priority.

        A merge normally leads only to later priorities, since a pair is learned after its
        parts. A vocabulary where it does not is finished by `run_queue`.
        """
        symbols, table, sizes = self.symbols, self.table, self.table.sizes
        following, previous = self.following, self.previous
        n = len(symbols)
        lists: dict[int, list[int]] = {}
        left = symbols[0]
        for place in range(1, n):
            right = symbols[place]
            found = table[left << _SYMBOL_BITS | right]
            if found >= 0:
                entry = (place - 1) << _SYMBOL_BITS | found & _SYMBOL_MASK
                found >>= _SYMBOL_BITS
                if found in lists:
                    lists[found].append(entry)
                else:
                    lists[found] = [entry]
            left = right
        ranks = list(lists)
        heapq.heapify(ranks)
        while ranks:
            rank = heapq.heappop(ranks)
            entries = lists.pop(rank)
            entries.sort()
            for index, entry in enumerate(entries):
                place = entry >> _SYMBOL_BITS
                left = symbols[place]
                if left < 0:
                    continue
                after = following[place]
                if after >= n:
                    continue
                merged = entry & _SYMBOL_MASK
                if sizes[left] + sizes[symbols[after]] != sizes[merged]:
                    continue
                symbols[place] = merged
                symbols[after] = -1
                after = following[after]
                following[place] = after
                backwards = False
                if after < n:
                    previous[after] = place
                    found = table[merged << _SYMBOL_BITS | symbols[after]]
                    if found >= 0:
                        entry = place << _SYMBOL_BITS | found & _SYMBOL_MASK
                        found >>= _SYMBOL_BITS
                        backwards = found <= rank
                        if found in lists:
                            lists[found].append(entry)
                        else:
                            lists[found] = [entry]
                            heapq.heappush(ranks, found)
                before = previous[place]
                if before >= 0:
                    found = table[symbols[before] << _SYMBOL_BITS | merged]
                    if found >= 0:
                        entry = before << _SYMBOL_BITS | found & _SYMBOL_MASK
                        found >>= _SYMBOL_BITS
                        backwards = backwards or found <= rank
                        if found in lists:
                            lists[found].append(entry)
                        else:
                            lists[found] = [entry]
                            heapq.heappush(ranks, found)
                if backwards:
                    lists.setdefault(rank, []).extend(entries[index + 1 :])
                    queue = [r << _PRIORITY_SHIFT | e for r, es in lists.items() for e in es]
                    heapq.heapify(queue)
                    return self.run_queue(queue)
        return self.result()
