"""WordPiece (`tokenizer.ggml.model` bert): the longest known piece, word by word."""

from __future__ import annotations

import unicodedata

from kinetic.errors import ModelFileError
from kinetic.text.unicode_classes import char_class
from kinetic.text.vocab import Vocab

SPACE = "\u2581"
LONGEST_WORD = 100
"""Characters; a longer word is unknown."""
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_ASCII_SPACE = "\t\n\v\f\r "
_ASCII_SPLIT = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


class WpmModel:
    """Encodes plain text, without special tokens.

    *Source*: BERT's tokenizer (Devlin et al. 2018) as Hugging Face has it. llama.cpp differs in
    three ways, none of which is followed: it keeps one jamo of a Hangul syllable, drops spacing
    vowel signs with the accents, and has no limit to a word's length.
    """

    def __init__(
        self, vocab: Vocab, unknown: int | None, lowercase: bool, strip_accents: bool
    ) -> None:
        self._vocab = vocab
        self._unknown = unknown
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._words: dict[str, list[int]] = {}
        self._longest = 0

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        out: list[int] = []
        for word in self._split(text):
            ids = self._words.get(word)
            if ids is None:
                ids = self._word(word)
                if len(word) <= 64:
                    if len(self._words) >= 1 << 16:
                        self._words.clear()
                    self._words[word] = ids
            out += ids
        return out

    def _split(self, text: str) -> list[str]:
        words: list[str] = []
        current: list[str] = []

        def finish() -> None:
            if current:
                words.append("".join(current))
                current.clear()

        for char in self._unaccented(text):
            code = ord(char)
            if code < 128:
                space = char in _ASCII_SPACE
                control = code < 32 or code == 127
                alone = char in _ASCII_SPLIT
            else:
                kind = char_class(code)
                space = kind == "s"
                control = code == 0xFFFD or (kind == "x" and unicodedata.category(char) != "Cn")
                alone = kind == "P" or any(a <= code <= b for a, b in _CHINESE)
            if space:
                finish()
            elif control:
                continue
            else:
                if self._lowercase:
                    char = char.lower()
                if alone:
                    finish()
                    words.append(char)
                else:
                    current.append(char)
        finish()
        return words

    def _unaccented(self, text: str) -> str:
        """The text in canonical decomposition without its marks that take no space."""
        if not self._strip_accents or text.isascii():
            return text
        parts = unicodedata.normalize("NFD", text)
        return "".join(c for c in parts if c < "\x80" or unicodedata.category(c) != "Mn")

    def _word(self, word: str) -> list[int]:
        ids = self._vocab.ids
        if len(word) > LONGEST_WORD and self._unknown is not None:
            return [self._unknown]
        if not self._longest:
            self._longest = max(map(len, ids))
        data = (SPACE + word).encode()
        out: list[int] = []
        start = 0
        while start < len(data):
            for end in range(min(len(data), start + self._longest + 1), start, -1):
                token = ids.get(data[start:end])
                if token is not None:
                    out.append(token)
                    start = end
                    break
            else:
                if self._unknown is None:
                    raise ModelFileError(
                        "the vocabulary has no unknown token; convert the file again"
                    )
                return [self._unknown]
        return out
