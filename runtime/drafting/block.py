"""A model's own prediction block: guesses from what the model made of the rows so far.

The block is a program of its own (`families.build_draft`) on a device of its own, with one
layer of keys and values. Row `k` is token `k` and the model's hidden vector of row `k - 1`; it
predicts token `k + 1`. For guesses further on, the block's own hidden vector takes the place of
the model's. *Source*: Gloeckle et al., 2024, "Better & faster large language models via
multi-token prediction"; DeepSeek-V3 report, section 2.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from kinetic.errors import InternalError
from kinetic.runtime.devices.base import Device
from kinetic.runtime.pages import PagePool
from kinetic.runtime.rows import Rows
from kinetic.runtime.sequence import Sequence

Vectors = npt.NDArray[np.float32]
LONGEST = 8
"""Guesses in a row, at most: each is made from the one before, and the block was trained on the
first."""
BATCH = 64
"""Rows that are told at once, unless a guess is wanted before."""
_PRIOR, _NEWEST = 0.6, 0.1
"""The share of guesses that are right, before one was made; what the newest counts for."""
_LONGEST_PAUSE = 64
"""Tokens between two looks whether guessing has come to pay."""


class PredictionBlock:
    """The block and its cache, shared by all sequences that it follows."""

    def __init__(self, device: Device, n_ctx: int, n_pages: int):
        if not device.program.hidden:
            raise InternalError("this program is not one of a prediction block")
        self.device, self.n_ctx, self.pages = device, n_ctx, PagePool(n_pages)
        self.seconds: float | None = None
        """What a guess takes just now."""

    def run(self, sequence: Sequence, tokens: Items[int], hidden: Vectors) -> tuple[int, Vectors]:
        """Run rows at the end of a sequence: the likeliest token after the last, and the block's
        hidden vector of it.

        *Raises* `ContextError` where the sequence does not fit.
        """
        size, best, last = self.device.program.max_rows, 0, hidden[0]
        for at in range(0, len(tokens), size):
            part, start = tokens[at : at + size], len(sequence)
            rows = Rows(
                tokens=np.array(part, np.int32),
                positions=np.arange(start, start + len(part), dtype=np.int32),
                slots=sequence.extend(part),
                tables=[sequence.table] * len(part),
                wanted=np.array([len(part) - 1], np.int32),
                hidden=hidden[at : at + size],
            )
            started = time.perf_counter()
            self.device.step(rows)
            if len(part) == 1:
                took = time.perf_counter() - started
                self.seconds = took if self.seconds is None else 0.8 * self.seconds + 0.2 * took
            best = int(self.device.output("logits", 1)[0].argmax())
            last = self.device.output("hidden", len(part))[-1].copy()
        return best, last


class Follower:
    """Follows one sequence of the model and guesses how it goes on."""

    def __init__(self, block: PredictionBlock):
        self._block = block
        self._sequence = Sequence(block.pages, block.n_ctx)
        self._last: Vectors = np.zeros(block.device.program.hidden, np.float32)

    def __len__(self) -> int:
        """Tokens that it has been told."""
        return len(self._sequence)

    def tell(self, tokens: Items[int], hidden: Vectors) -> None:
        """The model has run these tokens next, and made `hidden` `[T, D]` of them.

        Of a step with guesses tell only the tokens that were kept.
        """
        if not tokens:
            return
        before = np.concatenate([self._last[None], hidden[: len(tokens) - 1]])
        self._block.run(self._sequence, tokens, before)
        self._last = hidden[len(tokens) - 1].copy()

    def guess(self, token: int, count: int) -> list[int]:
        """Up to `count` tokens after `token`, which is chosen but has not been run."""
        length, found, last = len(self._sequence), list[int](), self._last
        count = min(count, self._sequence.n_ctx - length)
        try:
            for _ in range(count):
                token, last = self._block.run(self._sequence, [token], last[None])
                found.append(token)
        finally:
            self._sequence.truncate(length)
        return found

    def close(self) -> None:
        """Give the pages back."""
        self._sequence.close()


class FromBlock:
    """What the block guesses: a source for one answer.

    It costs a pass over the block's weights for each guess, so it guesses only as far as that
    pays: `worth()` is the least chance with which a guess gains more than it takes. Where not
    even the first does, it looks again after a pause, which grows. Rows that it is told in the
    meantime are kept, and run together.

    It follows from where the answer began to run: what a warm prompt did not run again has left
    no hidden vectors, which makes guesses worse and nothing wrong.
    """

    def __init__(self, block: PredictionBlock, worth: Callable[[], float]):
        self._block, self._worth = block, worth
        self._follower = Follower(block)
        self._at: int | None = None
        self._tokens, self._hidden = list[int](), list[Vectors]()
        self._chosen: int | None = None
        """The last token, while all before it have been told and nothing was guessed."""
        self._ahead: list[int] = []
        self._right, self._pause, self._wait = _PRIOR, 0, 0
        self.match = 0
        """How many of its guesses have been right in a row."""

    def follow(self, at: int, tokens: Items[int], hidden: Vectors, chosen: int | None) -> None:
        """The model has run `tokens` from place `at` of the text on and made `hidden` of them;
        `chosen` is the token after them, where it is the text's last one."""
        if self._at is not None and at != self._at:  # the sequence has begun anew
            self._follower.close()
            self._follower = Follower(self._block)
            self._tokens, self._hidden = [], []
        self._at = at + len(tokens)
        self._tokens += tokens
        self._hidden.append(hidden[: len(tokens)].copy())
        if len(self._tokens) >= BATCH:
            self._tell()
        self._chosen, self._ahead = chosen, []

    def _tell(self) -> None:
        if self._tokens:
            self._follower.tell(self._tokens, np.concatenate(self._hidden))
            self._tokens, self._hidden = [], []

    def next(self) -> int | None:
        """The guess for the next token; None without one."""
        if self._chosen is not None and not self._wait:
            self._guess(self._chosen)
            self._chosen = None
        return self._ahead[0] if self._ahead else None

    def _guess(self, token: int) -> None:
        least, count, chance = self._worth(), 0, self._right
        while count < LONGEST and chance > least:
            count, chance = count + 1, chance * self._right
        self._pause = 0 if count else min(_LONGEST_PAUSE, max(2, 2 * self._pause))
        self._wait = self._pause
        self._tell()
        self._ahead = self._follower.guess(token, max(1, count))

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        return self._ahead[:count]

    def push(self, tokens: Items[int]) -> None:
        """`tokens` is the sequence so far; its last one is new."""
        self._wait = max(0, self._wait - 1)
        self._chosen = None
        if not self._ahead:
            return
        right = self._ahead.pop(0) == tokens[-1]
        self._right += _NEWEST * (right - self._right)
        self.match = self.match + 1 if right else 0
        if not right:
            self._ahead = []

    def close(self) -> None:
        """Give the pages back."""
        self._follower.close()
