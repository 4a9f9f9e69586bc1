"""What a grammar is to the sampler: which tokens may come next."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A grammar over one answer; the scheduler asks before each draw and tells each token."""

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may follow."""

    def mask(self) -> NDArray[np.bool_] | None:
        """The tokens that may come next, `bool[V]`; None where all may."""

    def accept(self, token: int) -> None:
        """A token of the answer (never an end token)."""

    def rollback(self, n: int) -> None:
        """Forget the last `n` accepted tokens."""

    def clone(self) -> Constraint:
        """An independent constraint in the same state."""
