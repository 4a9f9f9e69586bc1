"""Rows: the one interface of a step.

Prefill, decode, several sequences, later drafts and recurrent states: all are rows. A
row names its token, its logical position on its own path, the cache slot it writes, and
the pages its path lies in; and whether its outputs are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one step.

    *Shapes*: `tokens`, `positions` int32 [T]; `slots` int64 [T], page number times the
    page size plus the place in the page; `tables` one int32 page table a row (rows of a
    sequence share one array); `wanted` int32 [R], ascending row numbers.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int64]
    tables: Sequence[npt.NDArray[np.int32]]
    wanted: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.tokens)
