r"""Keeps what users wrote apart from a template's markup while the template runs.

A chat template mixes its own markup with messages into one string, and afterwards nothing tells
whose `<|im_end|>` is whose. Marking whole messages would not survive the template, which may
trim, slice, compare and join them. So only text that could become markup is changed: the
punctuation of its tokens is replaced by private-use characters, one for one, and put back in
the result, where the places of those characters say which tokens must not be recognised.

A string counts as able to become markup if it holds a whole token, or if, trimmed, it begins
with a token's tail or ends with a token's head, since a neighbour could complete it. All other
strings reach the template untouched. A template that looks for markup inside a user's message
(some look for `<tool_response>`) does not find it: it takes the text for plain text, which it
is. A template that deletes from the middle of a message and so joins two halves of a token
is not seen through.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from kinetic.errors import TemplateError
from kinetic.text.special_tokens import PresenceIndex

Span = tuple[int, int]
Json = object

# The private planes in rows of 256; a row that the conversation uses is left alone.
_ROWS = range(0xF00, 0x10FF)
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")


class MarkupTokens:
    """A set of token texts that must not be forged, and quick questions about it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({t for t in texts if t.strip()}, key=len, reverse=True))
        marks = set()
        for text in self.texts:
            own = {c for c in text if not (c.isalnum() or c.isspace() or c in "_-")}
            marks |= own or {text[0]}
        self.marks = frozenset(marks)

    @functools.cached_property
    def _index(self) -> PresenceIndex:
        return PresenceIndex(self.texts)

    @functools.cached_property
    def _heads(self) -> frozenset[str]:
        return frozenset(t[:k] for t in self.texts for k in range(1, len(t)))

    @functools.cached_property
    def _tails(self) -> frozenset[str]:
        return frozenset(t[k:] for t in self.texts for k in range(1, len(t)))

    def inside(self, text: str) -> list[str]:
        """The tokens that a text holds whole, longest first."""
        return [self.texts[i] for i in self._index.present(text)]

    def could_form(self, text: str) -> bool:
        """Whether a text holds a token, or part of one at either end.

        Also asked of the text in one case and without white space, since templates may change
        those.
        """
        if not self.marks.intersection(text):
            return False
        variants = {text, text.lower(), text.upper(), "".join(text.split())}
        return any(map(self._forms, variants))

    def _forms(self, text: str) -> bool:
        if self._index.present(text):
            return True
        trimmed = text.strip()
        longest = min(len(trimmed), len(self.texts[0]))
        return any(
            trimmed[:k] in self._tails or trimmed[-k:] in self._heads for k in range(1, longest + 1)
        )


class MarkupGuard:
    """Disguises the markup in one conversation's strings, and finds it again in the result."""

    def __init__(
        self, user: MarkupTokens, model: MarkupTokens, inputs: Json, template: str
    ) -> None:
        self._user = user
        self._model = model
        marks = sorted(user.marks | model.marks)
        taken = {ord(c) >> 8 for s in (*_strings(inputs), template) for c in _PRIVATE.findall(s)}
        free = (code for row in _ROWS if row not in taken for code in range(row << 8, row + 1 << 8))
        codes = list(itertools.islice(free, 2 * len(marks)))
        if len(codes) < 2 * len(marks):
            raise TemplateError("the conversation uses nearly every private-use character")
        self._as_user = {ord(c): codes[i] for i, c in enumerate(marks)}
        self._as_model = {ord(c): codes[len(marks) + i] for i, c in enumerate(marks)}
        self._back = {
            new: old for table in (self._as_user, self._as_model) for old, new in table.items()
        }
        self._find_user = _char_run(self._as_user)
        self._find_model = _char_run(self._as_model)
        self.used = False

    def user(self, value: Json) -> Json:
        """A value whose strings came from outside the model."""
        if isinstance(value, str):
            if not self._user.could_form(value):
                return value
            self.used = True
            return value.translate(self._as_user)
        if isinstance(value, Mapping):
            return {self.user(k): self.user(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.user(v) for v in value]
        return value

    def model(self, value: Json) -> Json:
        """A value whose strings a model wrote earlier: only whole control tokens are disguised."""
        if isinstance(value, str):
            for token in self._model.inside(value):
                self.used = True
                value = value.replace(token, token.translate(self._as_model))
            return value
        if isinstance(value, (list, tuple)):
            return [self.model(v) for v in value]
        if isinstance(value, Mapping):
            return {k: self.model(v) for k, v in value.items()}
        return value

    def unescape_json(self, text: str) -> str:
        """Undo ASCII escapes of the stand-ins, so that they can be found in JSON too."""
        if not self.used or "\\ud" not in text:
            return text
        return _ESCAPED.sub(self._unescape_one, text)

    def _unescape_one(self, match: re.Match[str]) -> str:
        high, low = int(match[1], 16), int(match[2], 16)
        code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
        return chr(code) if code in self._back else match[0]

    def restore(self, text: str) -> str:
        """The text with every stand-in replaced by its character."""
        return text.translate(self._back) if self.used else text

    def spans(self, text: str) -> tuple[list[Span], list[Span]]:
        """Where a result, not yet restored, holds characters of users and of the model."""
        if not self.used:
            return [], []
        users = [m.span() for m in self._find_user.finditer(text)] if self._find_user else []
        models = [m.span() for m in self._find_model.finditer(text)] if self._find_model else []
        return users, models


_ESCAPED = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def _char_run(table: dict[int, int]) -> re.Pattern[str] | None:
    chars = "".join(map(chr, table.values()))
    return re.compile(f"[{chars}]+") if chars else None


def _strings(value: Json) -> Iterable[str]:
    stack: list[Json] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, Sequence):
            stack.extend(item)
