"""Slots of recurrent state: who has which.

A slot holds the states of all recurrent layers after one token of one sequence. It is
small and of one size, however long the sequence is, but unlike pages it cannot be taken
back by a few tokens: to return somewhere, keep a slot of that place.
"""

from __future__ import annotations

from kinetic.errors import ContextError


class StatePool:
    """Slot numbers; the lowest free one is given first, so that few are ever touched."""

    def __init__(self, n_slots: int):
        self.n_slots = n_slots
        self._free = list(range(n_slots - 1, -1, -1))

    @property
    def available(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A slot of one's own; it holds whatever its last owner left.

        *Raises* `ContextError` when all are held.
        """
        if not self._free:
            raise ContextError(
                f"all {self.n_slots} slots of recurrent state are in use; run fewer requests at "
                "once with --parallel"
            )
        return self._free.pop()

    def drop(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)
        self._free.sort(reverse=True)
