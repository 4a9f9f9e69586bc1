"""Rows: the one interface of a step.

Prefill, decode, several sequences, drafts: all are rows. A row names its token, its
logical position on its own path, the cache slot it writes, and the pages its path lies in;
in a model with recurrent layers also the state it goes on from and where the state after it
is kept; and whether its outputs are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


def _none() -> npt.NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one step.

    *Shapes*: `tokens`, `positions` int32 [T]; `slots` int64 [T], page number times the
    page size plus the place in the page; `tables` one int32 page table a row (rows of a
    sequence share one array); `wanted` int32 [R], ascending row numbers; `state_in`,
    `state_out` int32 [T], empty where the program has no states; `hidden` float32 [T, D], the
    vectors that a drafting block reads besides the tokens.

    `state_in` is a slot of state, `CONTINUE` (the state after the row before this one in the
    step) or `FRESH` (zeros); `state_out` a slot or `NOT_KEPT` (`ir/cpu_abi.py`). Rows are
    walked in order, so a slot that one row stores a later one may load.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int64]
    tables: Sequence[npt.NDArray[np.int32]]
    wanted: npt.NDArray[np.int32]
    state_in: npt.NDArray[np.int32] = field(default_factory=_none)
    state_out: npt.NDArray[np.int32] = field(default_factory=_none)
    hidden: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.tokens)
