"""Lets a model think freely, then holds its answer to a grammar."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.text.grammar.matcher import GrammarConstraint
from kinetic.text.grammar.vocabulary import GrammarVocabulary
from kinetic.text.reasoning import ReasoningStyle

_START, _INSIDE, _GAP, _ANSWER = range(4)


class AfterReasoning:
    """Everything but an end until the closing marker, then line breaks, then the grammar.

    With `is_open` the prompt has opened the block; else the model may open one, if its opener
    is one token, or answer at once.
    """

    def __init__(
        self,
        inner: GrammarConstraint,
        vocabulary: GrammarVocabulary,
        style: ReasoningStyle,
        is_open: bool,
    ) -> None:
        self._inner, self._vocabulary = inner, vocabulary
        self._closer = style.closer.encode()
        tokenizer = vocabulary.tokenizer
        opener = tokenizer.encode(style.opener.rstrip("\n"), parse_special=True)
        self._openers = frozenset(opener if len(opener) == 1 else ())
        self._phase, self._tail = (_INSIDE if is_open else _START), b""
        self._history: list[tuple[int, bytes, bool]] = []

    @property
    def finished(self) -> bool:
        """Whether only the end may follow."""
        return self._phase == _ANSWER and self._inner.finished

    def mask(self) -> NDArray[np.bool_] | None:
        """The tokens that may come next."""
        if self._phase == _ANSWER:
            return self._inner.mask()
        if self._phase == _INSIDE:
            mask = ~self._vocabulary.ends
            # A token that closes the block must not bring the answer's first characters along.
            last = self._closer[-1:]
            if any(self._tail.endswith(self._closer[:k]) for k in range(1, len(self._closer))):
                for token in self._vocabulary.containing(last):
                    rest = self._after(self._tail + self._vocabulary.token_bytes(token))
                    if rest is not None and rest.strip(b"\n"):
                        mask[token] = False
            return mask
        mask = self._inner.mask().copy()
        mask[list(self._vocabulary.breaks if self._phase == _GAP else self._openers)] = True
        return mask

    def accept(self, token: int) -> None:
        """A token of the answer."""
        before, told = (self._phase, self._tail), False
        if self._phase == _INSIDE:
            text = self._tail + self._vocabulary.token_bytes(token)
            self._phase = _INSIDE if self._after(text) is None else _GAP
            self._tail = text[-len(self._closer) :]
        elif self._phase == _START and token in self._openers:
            self._phase = _INSIDE
        elif self._phase == _GAP and token in self._vocabulary.breaks:
            self._phase = _ANSWER
        else:
            self._inner.accept(token)
            self._phase, told = _ANSWER, True
        self._history.append((*before, told))

    def rollback(self, n: int) -> None:
        """Forget the last `n` tokens."""
        told = 0
        for _ in range(n):
            self._phase, self._tail, was_told = self._history.pop()
            told += was_told
        self._inner.rollback(told)

    def clone(self) -> AfterReasoning:
        """An independent constraint in the same state."""
        new = object.__new__(AfterReasoning)
        new.__dict__.update(self.__dict__)
        new._inner, new._history = self._inner.clone(), list(self._history)
        return new

    def _after(self, text: bytes) -> bytes | None:
        at = text.find(self._closer)
        return None if at < 0 else text[at + len(self._closer) :]
