"""The engine: sequences in, rows out, one step function.

work = [(sequence, tokens, outputs wanted), ...]
step: extend the sequences, lay their rows side by side, run, hand back the outputs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError, InternalError
from kinetic.ir.cpu_abi import CONTINUE, FRESH, NOT_KEPT, PAGE
from kinetic.runtime.devices.base import Device
from kinetic.runtime.pages import PagePool
from kinetic.runtime.rows import Rows
from kinetic.runtime.sequence import Sequence
from kinetic.runtime.states import StatePool

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Work:
    """Tokens to run on a sequence in one step; `want` is the number of last rows whose
    outputs are wanted. The last `guesses` tokens may be wrong: `Sequence.settle` keeps those
    that are not, and must be called before the next step."""

    sequence: Sequence
    tokens: list[int]
    want: int = 0
    guesses: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A place of a sequence to return to; `slot` keeps the state there, where there is one."""

    length: int
    slot: int | None = None


class Engine:
    """Steps over sequences on one device.

    `n_ctx` bounds a sequence; all sequences share `n_pages` pages, and the device's slots
    where the program has recurrent layers.
    """

    def __init__(self, device: Device, n_ctx: int, n_pages: int):
        self.device, self.n_ctx = device, n_ctx
        self.pages = PagePool(n_pages)
        self.states = StatePool(device.n_slots) if device.program.states else None

    def new_sequence(self) -> Sequence:
        """An empty sequence."""
        return Sequence(self.pages, self.n_ctx, self.states)

    def step(self, batch: list[Work], output: str = "logits") -> list[Logits]:
        """Run one step; for each work its wanted outputs, [want, width].

        The arrays are views that the next step overwrites.

        *Raises* `ContextError` when a sequence or the step does not fit; the sequences are
        then as they were.
        """
        lengths = {id(work.sequence): (work.sequence, len(work.sequence)) for work in batch}
        try:
            self.device.step(self._rows(batch))
        except BaseException as error:
            # A step that was refused has touched nothing. One that broke off may have moved
            # recurrent states on, so their sequences start over.
            begun = self.states is not None and not isinstance(error, ContextError)
            for sequence, length in lengths.values():
                sequence.forget(0 if begun else length)
            raise
        outputs, at = [], 0
        found = self.device.output(output, sum(work.want for work in batch))
        for work in batch:
            outputs.append(found[at : at + work.want])
            at += work.want
        return outputs

    @staticmethod
    def _rows(batch: list[Work]) -> Rows:
        """Extend the sequences, and lay their rows side by side."""
        tokens: list[int] = []
        positions: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
        slots: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
        tables: list[npt.NDArray[np.int32]] = []
        wanted: list[int] = []
        state_in: list[int] = []
        state_out: list[int] = []
        for work in batch:
            start, count = len(work.sequence), len(work.tokens)
            if not 0 <= work.want <= count:
                raise InternalError(f"{work.want} outputs of {count} rows are wanted")
            slots.append(work.sequence.extend(work.tokens))
            tokens.extend(work.tokens)
            positions.append(np.arange(start, start + count, dtype=np.int32))
            tables.extend([work.sequence.table] * count)
            wanted.extend(range(len(tokens) - work.want, len(tokens)))
            if work.sequence.slot is not None and count:
                slot, more = work.sequence.slot, count - 1
                before = work.sequence.keep_states(work.guesses)
                state_in.extend([slot if start else FRESH, *[CONTINUE] * more])
                state_out.extend([*[NOT_KEPT] * (more - work.guesses), *before, slot])
        return Rows(
            np.array(tokens, np.int32),
            np.concatenate(positions),
            np.concatenate(slots),
            tables,
            np.array(wanted, np.int32),
            np.array(state_in, np.int32),
            np.array(state_out, np.int32),
        )

    def fork(self, sequence: Sequence) -> Sequence:
        """Another sequence that goes on from the same place: whole pages are shared, the last
        one and the state are copied.

        *Raises* `ContextError` where pages or slots of state are used up.
        """
        twin, copy = sequence.fork()
        if copy is not None:
            self.device.copy_page(*copy)
        if sequence.slot is not None and self.states is not None:
            try:
                twin.slot = twin.slot if twin.slot is not None else self.states.take()
            except ContextError:
                twin.forget(0)
                raise
            self.device.copy_state(sequence.slot, twin.slot)
        return twin

    def checkpoint(self, sequence: Sequence) -> Checkpoint:
        """Remember this place of a sequence, for `rollback`; `release` gives its slot back.

        *Raises* `ContextError` where no slot of state is free.
        """
        if self.states is None or sequence.slot is None:
            return Checkpoint(len(sequence))
        slot = self.states.take()
        self.device.copy_state(sequence.slot, slot)
        return Checkpoint(len(sequence), slot)

    def rollback(self, sequence: Sequence, to: Checkpoint) -> None:
        """Forget what came after the checkpoint, which stays valid."""
        if to.slot is not None and sequence.slot is not None:
            self.device.copy_state(to.slot, sequence.slot)
        sequence.forget(to.length)

    def release(self, checkpoint: Checkpoint) -> None:
        """Give a checkpoint's slot back."""
        if self.states is not None and checkpoint.slot is not None:
            self.states.drop(checkpoint.slot)

    def prefill(self, sequence: Sequence, tokens: list[int]) -> Logits:
        """Run a prompt in chunks; the logits after its last token, [V]."""
        size = self.device.program.max_rows
        for start in range(0, len(tokens), size):
            chunk = tokens[start : start + size]
            last = start + size >= len(tokens)
            (logits,) = self.step([Work(sequence, chunk, int(last))])
        return logits[0]

    def decode(self, sequence: Sequence, token: int) -> Logits:
        """Run one token; the logits after it, [V]."""
        return self.step([Work(sequence, [token], 1)])[0][0]

    def all_logits(self, sequence: Sequence, tokens: list[int]) -> Iterator[Logits]:
        """Run tokens and yield the logits after each, in order."""
        size = min(self.device.program.max_rows, self.device.program.max_outputs)
        for start in range(0, len(tokens), size):
            chunk = tokens[start : start + size]
            (logits,) = self.step([Work(sequence, chunk, len(chunk))])
            yield from logits.copy()

    @staticmethod
    def pages_for(n_ctx: int, sequences: int = 1) -> int:
        """Pages that hold so many full sequences."""
        return sequences * -(-n_ctx // PAGE)
