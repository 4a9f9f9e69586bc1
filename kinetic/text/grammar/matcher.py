"""A grammar over one answer, as the sampler asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import InternalError
from kinetic.text.grammar.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarConstraint:
    """`runtime.sampling.constraint.Constraint` for a compiled grammar.

    `leads`: it says itself what begins an answer of its kind.
    """

    def __init__(
        self, matcher: LLMatcher, vocabulary: GrammarVocabulary, leads: bool = False
    ) -> None:
        self._matcher, self._vocabulary, self.leads = matcher, vocabulary, leads
        self._mask: NDArray[np.bool_] | None = None

    @property
    def finished(self) -> bool:
        """Whether only the end may follow."""
        return not (self.mask() & ~self._vocabulary.ends).any()

    def mask(self) -> NDArray[np.bool_]:
        """The tokens that may come next; every end token where the answer may end."""
        if self._mask is None:
            import llguidance.numpy as packed

            n = self._vocabulary.n_tokens
            if self._matcher.is_stopped() and not self._matcher.is_error():
                self._mask = self._vocabulary.ends.copy()
                return self._mask
            bits = packed.allocate_token_bitmask(1, n)
            packed.fill_next_token_bitmask(self._matcher, bits)
            self._check()
            mask = np.unpackbits(bits.view(np.uint8)[0], bitorder="little")[:n].astype(np.bool_)
            mask &= ~self._vocabulary.ends
            if self._matcher.is_accepting():
                mask |= self._vocabulary.ends
            self._mask = mask
        return self._mask

    def accept(self, token: int) -> None:
        """A token of the answer (never an end token)."""
        self._mask = None
        if not self._matcher.consume_token(token):
            self._check()
            raise InternalError(f"grammar: token {token} was drawn against the mask")

    def rollback(self, n: int) -> None:
        """Forget the last `n` tokens."""
        if n:
            self._mask = None
            self._matcher.rollback(n)
            self._check()

    def clone(self) -> GrammarConstraint:
        """An independent constraint in the same state."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary, self.leads)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InternalError(f"grammar: {self._matcher.get_error().splitlines()[0]}")
