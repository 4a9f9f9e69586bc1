"""Where guesses come from. A source costs the same few operations for every token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from kinetic.runtime.drafting.text import Reader, Text

EARLIER_ORDERS = (4,)
"""Among all that was ever said, two tokens in a row tell nothing."""
EARLIER_TOKENS = 1 << 17
"""Tokens of earlier requests that are remembered, of all salts together."""


class Source(Protocol):
    """Guesses what comes next in one sequence.

    A model's own prediction block is one more source: it is told the tokens like the others,
    and guesses from the hidden state of the last row.
    """

    @property
    def match(self) -> int:
        """How many of its guesses have been right in a row: what its next one may be worth."""

    def next(self) -> int | None:
        """The guess for the next token; None without one."""

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""

    def push(self, tokens: Sequence[int]) -> None:
        """`tokens` is the sequence so far; its last one is new."""


class FromContext(Reader):
    """What followed when the sequence's last tokens stood in it before."""

    def __init__(self, prompt: Sequence[int]):
        text = Text()
        text.extend(prompt[:-1])
        super().__init__(text)
        if prompt:
            self.push(prompt)

    def push(self, tokens: Sequence[int]) -> None:
        """Follow, then take the token into the text: so an n-gram does not find itself."""
        super().push(tokens)
        self.text.append(tokens[-1])


class FromEarlier:
    """What followed when the sequence's last tokens stood in an earlier request."""

    def __init__(self, texts: Sequence[Text], prompt: Sequence[int]):
        self._readers = [Reader(text) for text in texts]
        self._best = self._readers[0]
        if prompt:
            self.push(prompt)

    @property
    def match(self) -> int:
        """Of the reader that has agreed for longest."""
        return self._best.match

    def next(self) -> int | None:
        """The guess for the next token; None without one."""
        return self._best.next()

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        return self._best.guess(count)

    def push(self, tokens: Sequence[int]) -> None:
        """`tokens` is the sequence so far; its last one is new."""
        for reader in self._readers:
            reader.push(tokens)
        self._best = max(self._readers, key=lambda r: (r.next() is not None, r.match))


class Earlier:
    """What earlier requests said, each salt for itself; bounded, the oldest is forgotten.

    Each salt has a young text and an old one: when the young one is full it becomes the old
    one, so forgetting costs nothing. Salts unused for longest go first.
    """

    def __init__(self, limit: int = EARLIER_TOKENS):
        self._limit = limit
        self._salts: OrderedDict[str, list[Text]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(text.tokens) for texts in self._salts.values() for text in texts)

    def source(self, salt: str, prompt: Sequence[int]) -> FromEarlier | None:
        """A source for a sequence that begins with `prompt`; None where nothing is known."""
        texts = self._salts.get(salt)
        if texts is None:
            return None
        self._salts.move_to_end(salt)
        return FromEarlier(texts, prompt)

    def add(self, salt: str, tokens: Sequence[int]) -> None:
        """Remember the tokens of a finished request."""
        tokens = tokens[-(self._limit // 2) :]
        texts = self._salts.setdefault(salt, [Text(EARLIER_ORDERS)])
        self._salts.move_to_end(salt)
        if len(texts[0].tokens) + len(tokens) > self._limit // 2:
            # A new list: sources of answers under way go on with the texts they have.
            texts = self._salts[salt] = [Text(EARLIER_ORDERS), texts[0]]
        texts[0].extend(tokens)
        while len(self) > self._limit and len(self._salts) > 1:
            self._salts.popitem(last=False)
