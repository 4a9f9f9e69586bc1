"""Cache pages: who has which. A page is 64 positions in every layer's cache at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError
from kinetic.ir.cpu_abi import PAGE


class PagePool:
    """Page numbers with reference counts; lowest numbers are given first.

    Giving low numbers keeps the touched part of the cache small, and memory that was
    never touched is never resident.
    """

    def __init__(self, n_pages: int):
        self._counts: npt.NDArray[np.int32] = np.zeros(n_pages, np.int32)
        self._free = list(range(n_pages - 1, -1, -1))
        self.reclaim: Callable[[int], None] | None = None
        """Asked for so many pages more than are available; gives up what it can."""

    @property
    def available(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    @property
    def total(self) -> int:
        """Pages there are."""
        return len(self._counts)

    @property
    def positions(self) -> int:
        """Positions that all pages hold together."""
        return len(self._counts) * PAGE

    def make_room(self, count: int) -> None:
        """Have so many pages available, if what may be forgotten is enough for that."""
        if count > self.available and self.reclaim is not None:
            self.reclaim(count - self.available)

    def take(self) -> int:
        """A page of one's own.

        *Raises* `ContextError` when all are held.
        """
        self.make_room(1)
        if not self._free:
            raise ContextError(
                f"all {self.total} cache pages ({self.positions} positions) "
                "are in use; raise -c, or run fewer requests at once with --parallel"
            )
        page = self._free.pop()
        self._counts[page] = 1
        return page

    def holders(self, page: int) -> int:
        """How many hold a page."""
        return int(self._counts[page])

    def share(self, page: int) -> None:
        """One more holder of a page."""
        self._counts[page] += 1

    def drop(self, page: int) -> None:
        """One holder fewer; the last one frees the page."""
        self._counts[page] -= 1
        if self._counts[page] == 0:
            self._free.append(page)
