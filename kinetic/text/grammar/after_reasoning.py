"""Lets a model think freely, then holds its answer to a grammar."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.text.grammar.matcher import GrammarConstraint
from kinetic.text.grammar.vocabulary import GrammarVocabulary
from kinetic.text.reasoning import ReasoningStyle

_START, _FIXED, _INSIDE, _GAP, _ANSWER = range(5)
_Texts = tuple[tuple[tuple[int, ...], int], ...]
"""Token sequences that may come, and the phase after each."""


class AfterReasoning:
    """Everything but an end until the closing marker, then a line break, then the grammar.

    With `is_open` the prompt has opened the block; else the model may open one or answer at
    once. Where the style has texts between the thinking and the answer, they are written too.
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
        answer = "" if inner.leads else style.answer
        opener, direct = self._tokens(style.opener.rstrip("\n")), self._tokens(answer)
        after = self._tokens(style.turn + answer)
        self._after: _Texts = ((after, _ANSWER),) if after else ()
        self._begin: _Texts = ((opener, _INSIDE),) + (((direct, _ANSWER),) if direct else ())
        self._must_begin = bool(direct)
        self._phase, self._tail = (_INSIDE if is_open else _START), b""
        self._texts: _Texts = self._begin
        self._at = 0
        self._history: list[tuple[int, bytes, _Texts, int, bool]] = []

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._vocabulary.tokenizer.encode(text, parse_special=True)) if text else ()

    @property
    def finished(self) -> bool:
        """Whether only the end may follow."""
        return self._phase == _ANSWER and self._inner.finished

    def mask(self) -> NDArray[np.bool_] | None:
        """The tokens that may come next."""
        if self._phase == _ANSWER:
            return self._inner.mask()
        if self._phase == _INSIDE:
            return self._inside()
        if self._phase == _FIXED or self._must_begin:
            mask = np.zeros_like(self._vocabulary.ends)
            mask[[text[self._at] for text, _ in self._texts]] = True
            return mask
        mask = self._inner.mask().copy()
        more = self._unlike_an_answer() if self._phase == _START else self._vocabulary.breaks
        mask[list(more)] = True
        return mask

    def _inside(self) -> NDArray[np.bool_]:
        mask = ~self._vocabulary.ends
        # A token that closes the block must not bring the answer's first characters along.
        last = self._closer[-1:]
        if any(self._tail.endswith(self._closer[:k]) for k in range(1, len(self._closer))):
            for token in self._vocabulary.containing(last):
                rest = self._rest(self._tail + self._vocabulary.token_bytes(token))
                if rest is not None and rest.strip(b"\n"):
                    mask[token] = False
        return mask

    def _unlike_an_answer(self) -> list[int]:
        """First tokens of an opener; of several tokens, only one that no answer begins with."""
        return [t[0] for t, _ in self._begin if len(t) == 1 or not self._inner.mask()[t[0]]]

    def accept(self, token: int) -> None:
        """A token of the answer."""
        before, told = (self._phase, self._tail, self._texts, self._at), False
        if self._phase == _INSIDE:
            text = self._tail + self._vocabulary.token_bytes(token)
            self._tail = text[-len(self._closer) :]
            if self._rest(text) is not None:
                self._texts, self._at = self._after, 0
                self._phase = _FIXED if self._after else _GAP
        elif self._phase == _FIXED or (self._phase == _START and self._opens(token)):
            self._write(token)
        elif self._phase == _GAP and token in self._vocabulary.breaks:
            self._phase = _ANSWER
        else:
            self._inner.accept(token)
            self._phase, told = _ANSWER, True
        self._history.append((*before, told))

    def _opens(self, token: int) -> bool:
        firsts = [t[0] for t, _ in self._begin] if self._must_begin else self._unlike_an_answer()
        return token in firsts

    def _write(self, token: int) -> None:
        self._texts = tuple(t for t in self._texts if t[0][self._at] == token)
        self._phase, self._at = _FIXED, self._at + 1
        for text, phase in self._texts:
            if len(text) == self._at:
                self._phase, self._tail = phase, b""

    def rollback(self, n: int) -> None:
        """Forget the last `n` tokens."""
        told = 0
        for _ in range(n):
            self._phase, self._tail, self._texts, self._at, was_told = self._history.pop()
            told += was_told
        self._inner.rollback(told)

    def clone(self) -> AfterReasoning:
        """An independent constraint in the same state."""
        new = object.__new__(AfterReasoning)
        new.__dict__.update(self.__dict__)
        new._inner, new._history = self._inner.clone(), list(self._history)
        return new

    def _rest(self, text: bytes) -> bytes | None:
        at = text.find(self._closer)
        return None if at < 0 else text[at + len(self._closer) :]
