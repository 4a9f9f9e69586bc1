"""A model's tokens as the grammar library wants them; built once, in the background."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import UnsupportedError
from kinetic.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


_BREAKS = (b"\n", b"\n\n")


class _Words:
    """The protocol that llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.n_tokens)]
        self.special_token_ids = [t.id for t in tokenizer.special_tokens if t.control]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text)


class GrammarVocabulary:
    """Tokens for grammars. `warm` starts the building (about a second) and returns at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.n_tokens = tokenizer.n_tokens
        self.ends: NDArray[np.bool_] = np.zeros(self.n_tokens, np.bool_)
        self.ends[list(tokenizer.end_ids)] = True
        self._lock = threading.Lock()
        self._made: Future[LLTokenizer] | None = None

        self._containing: dict[bytes, list[int]] = {}

    def token_bytes(self, token: int) -> bytes:
        """A token's text."""
        return self.tokenizer.token_bytes(token)

    @functools.cached_property
    def breaks(self) -> frozenset[int]:
        """Tokens that are one or two line breaks and nothing else."""
        return frozenset(i for i in self.containing(b"\n") if self.token_bytes(i) in _BREAKS)

    def containing(self, part: bytes) -> list[int]:
        """The tokens whose text holds these bytes."""
        if part not in self._containing:
            spell = self.token_bytes
            self._containing[part] = [i for i in range(self.n_tokens) if part in spell(i)]
        return self._containing[part]

    def warm(self) -> None:
        """Begin to build, unless that has been done."""
        with self._lock:
            if self._made is None:
                self._made = Future()
                threading.Thread(target=self._build, args=(self._made,), daemon=True).start()

    def get(self) -> LLTokenizer:
        """The library's tokenizer; waits for it.

        *Raises*: UnsupportedError without the library, or for a vocabulary without an end.
        """
        self.warm()
        assert self._made is not None
        return self._made.result()

    def _build(self, made: Future[LLTokenizer]) -> None:
        try:
            made.set_result(self._new())
        except BaseException as error:
            made.set_exception(error)

    def _new(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise UnsupportedError(
                "constrained output needs the package llguidance; install kinetic-engine[server]"
            ) from None
        tokenizer = self.tokenizer
        ends = sorted(tokenizer.end_ids)
        end = tokenizer.eos_id if tokenizer.eos_id in tokenizer.end_ids else next(iter(ends), None)
        if end is None:
            raise UnsupportedError("this vocabulary has no end token, so no grammar can end")
        return LLTokenizer(TokenizerWrapper(_Words(tokenizer, end)))
