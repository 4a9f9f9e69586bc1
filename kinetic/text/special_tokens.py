"""Finding whole special tokens in a text before the rest is tokenized."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

_SPACE = " \t\n\v\f\r"

Span = tuple[int, int]
Fragment = str | int


class PresenceIndex:
    """Says which of many texts occur in another.

    Vocabularies have thousands of special tokens but few beginnings (`<un`, `<unused12`), and a
    text without a beginning holds none of its tokens.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._heads: dict[str, dict[str, list[int]]] = {}
        for index, text in enumerate(texts):
            longer = self._heads.setdefault(text[:3], {})
            longer.setdefault(text[:9], []).append(index)

    def present(self, text: str) -> list[int]:
        """The indices of the texts that occur, in order."""
        return sorted(
            index
            for head, longer in self._heads.items()
            if head in text
            for start, group in longer.items()
            if start in text
            for index in group
            if self._texts[index] in text
        )


@dataclass(frozen=True)
class SpecialToken:
    """A token that is matched as a whole.

    `control` tokens are matched only where markup is allowed. `lstrip` and `rstrip` drop the
    white space before or after the token.
    """

    id: int
    text: str
    control: bool
    lstrip: bool = False
    rstrip: bool = False


class SpecialTokens:
    """Cuts a text into special tokens and plain text.

    Longer tokens win over shorter ones wherever they overlap, and each is matched from left to
    right. *Source*: llama.cpp's partition by special tokens.
    """

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        self._tokens = sorted(tokens, key=lambda t: (-len(t.text.encode()), t.id))
        self._index = PresenceIndex([t.text for t in self._tokens])

    def partition(
        self,
        text: str,
        *,
        parse_control: bool,
        user_spans: Sequence[Span] = (),
        model_spans: Sequence[Span] = (),
        guarded: Collection[int] = (),
    ) -> list[Fragment]:
        """Cut a text into token ids and pieces of plain text.

        Control tokens count only if `parse_control`, and nowhere that touches `user_spans` or
        `model_spans`; tokens in `guarded` are refused in `user_spans` as well.
        """
        pieces: list[tuple[int, int, int]] = [(0, len(text), -1)] if text else []
        everyone = sorted([*user_spans, *model_spans])
        for token in (self._tokens[i] for i in self._index.present(text)):
            if token.control and not parse_control:
                continue
            barred: Sequence[Span] = ()
            if token.control:
                barred = everyone
            elif token.id in guarded:
                barred = sorted(user_spans)
            out: list[tuple[int, int, int]] = []
            for start, end, kind in pieces:
                if kind >= 0:
                    out.append((start, end, kind))
                else:
                    _split_piece(text, start, end, token, barred, out)
            pieces = out
        return [kind if kind >= 0 else text[start:end] for start, end, kind in pieces]


def _split_piece(
    text: str,
    start: int,
    end: int,
    token: SpecialToken,
    barred: Sequence[Span],
    out: list[tuple[int, int, int]],
) -> None:
    search = start
    next_bar = 0
    size = len(token.text)
    while True:
        at = text.find(token.text, search, end)
        if at < 0:
            break
        while next_bar < len(barred) and barred[next_bar][1] <= at:
            next_bar += 1
        if next_bar < len(barred) and barred[next_bar][0] < at + size:
            search = at + 1
            continue
        left = at
        if token.lstrip:
            while left > start and text[left - 1] in _SPACE:
                left -= 1
        if left > start:
            out.append((start, left, -1))
        out.append((at, at + size, token.id))
        start = at + size
        if token.rstrip:
            while start < end and text[start] in _SPACE:
                start += 1
        search = start
    if start < end:
        out.append((start, end, -1))
