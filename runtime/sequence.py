"""A sequence: the tokens run so far, the pages that hold their keys and values, and in models
with recurrent layers the slot that holds the state after the last of them."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError, InternalError
from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.pages import PagePool
from kinetic.runtime.states import StatePool


class Sequence:
    """One path of positions in the cache.

    `table` is the page table rows point at; its address never changes. `slot` is where the
    state after the last token lies; None without `states` and while the sequence is empty.
    """

    def __init__(self, pool: PagePool, n_ctx: int, states: StatePool | None = None):
        self._pool, self._states = pool, states
        self.slot: int | None = None
        self.n_ctx = n_ctx
        self.tokens: list[int] = []
        self.table: npt.NDArray[np.int32] = np.zeros(-(-n_ctx // PAGE), np.int32)
        self._pages = 0
        self._before: list[int] = []
        """Slots of the states before each of the last tokens, while those are guesses."""

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Items[int]) -> npt.NDArray[np.int64]:
        """Append tokens; the cache slots they write.

        *Raises* `ContextError` when the context, the page pool or the pool of states is full;
        the sequence is then as it was.
        """
        start, stop = len(self.tokens), len(self.tokens) + len(tokens)
        if stop > self.n_ctx:
            raise ContextError(
                f"the context of {self.n_ctx} tokens is full: {stop} are needed; raise it with -c"
            )
        needed = -(-stop // PAGE) - self._pages
        self._pool.make_room(needed)
        if needed > self._pool.available:
            self._pool_full(needed)
        if self._states is not None and self.slot is None:
            self.slot = self._states.take()
        for _ in range(needed):
            self.table[self._pages] = self._pool.take()
            self._pages += 1
        self.tokens.extend(tokens)
        positions = np.arange(start, stop, dtype=np.int64)
        pages = self.table[positions // PAGE].astype(np.int64)
        return pages * PAGE + positions % PAGE

    def _pool_full(self, needed: int) -> None:
        raise ContextError(
            f"the cache has {self._pool.available} free pages and {needed} are needed; "
            "raise -c, or run fewer requests at once with --parallel"
        )

    @property
    def pages(self) -> list[int]:
        """The pages it lies in, in order; the last one may be partly filled."""
        return [int(page) for page in self.table[: self._pages]]

    def adopt(self, pages: Items[int], tokens: Items[int]) -> None:
        """Begin with tokens whose keys and values lie in these pages, which are shared.

        Only whole pages may be adopted: a page that is written has one holder.
        """
        if self.tokens or len(tokens) != len(pages) * PAGE:
            raise InternalError(f"{len(tokens)} tokens do not fill {len(pages)} pages to adopt")
        for page in pages:
            self._pool.share(page)
            self.table[self._pages] = page
            self._pages += 1
        self.tokens.extend(tokens)

    def fork(self) -> tuple[Sequence, tuple[int, int] | None]:
        """Another sequence with the same past; and the page that the caller must copy, from
        where to where, if the last one is partly filled.

        *Raises* `ContextError` when the page pool is full.
        """
        twin = Sequence(self._pool, self.n_ctx, self._states)
        full = len(self.tokens) // PAGE
        twin.adopt(self.pages[:full], self.tokens[: full * PAGE])
        if len(self.tokens) == full * PAGE:
            return twin, None
        try:
            twin.extend(self.tokens[full * PAGE :])
        except ContextError:
            twin.forget(0)
            raise
        return twin, (int(self.table[full]), int(twin.table[full]))

    def keep_states(self, guesses: int) -> list[int]:
        """Slots for the states before each of so many guesses, until `settle`.

        *Raises* `ContextError` when the pool of states is full.
        """
        if self._states is not None:
            for _ in range(guesses):
                self._before.append(self._states.take())
        return self._before

    def settle(self, length: int) -> None:
        """Forget the guesses past `length`, and that the others were guesses."""
        wrong = len(self.tokens) - length
        if self._before and wrong and self.slot is not None:
            at = len(self._before) - wrong
            self.slot, self._before[at] = self._before[at], self.slot
        self.forget(length)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on.

        *Raises* `InternalError` where that needs a state that is gone: recurrent layers keep
        only the last one, so a shorter sequence needs a checkpoint (`Engine.rollback`).
        """
        if self._states is not None and 0 < length < len(self.tokens):
            raise InternalError(
                f"a sequence with recurrent layers cannot go back from {len(self.tokens)} tokens "
                f"to {length}; roll back to a checkpoint"
            )
        self.forget(length)

    def forget(self, length: int) -> None:
        """Give back what lies past `length`; the state is the caller's to put right."""
        while self._before and self._states is not None:
            self._states.drop(self._before.pop())
        if length == 0 and self._states is not None and self.slot is not None:
            self._states.drop(self.slot)
            self.slot = None
        del self.tokens[length:]
        keep = -(-length // PAGE)
        while self._pages > keep:
            self._pages -= 1
            self._pool.drop(int(self.table[self._pages]))

    def close(self) -> None:
        """Give all pages back."""
        self.truncate(0)
