"""A model's own prediction block: guesses from what the model made of the rows so far.

The block is a program of its own (`families.build_draft`) on a device of its own, with one
layer of keys and values. Row `k` is token `k` and the model's hidden vector of row `k - 1`; it
predicts token `k + 1`. For guesses further on, the block's own hidden vector takes the place of
the model's. *Source*: Gloeckle et al., 2024, "Better & faster large language models via
multi-token prediction"; DeepSeek-V3 report, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from kinetic.errors import InternalError
from kinetic.runtime.devices.base import Device
from kinetic.runtime.pages import PagePool
from kinetic.runtime.rows import Rows
from kinetic.runtime.sequence import Sequence

Vectors = npt.NDArray[np.float32]


class PredictionBlock:
    """The block and its cache, shared by all sequences that it follows."""

    def __init__(self, device: Device, n_ctx: int, n_pages: int):
        if not device.program.hidden:
            raise InternalError("this program is not one of a prediction block")
        self.device, self.n_ctx, self.pages = device, n_ctx, PagePool(n_pages)

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
            self.device.step(rows)
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
