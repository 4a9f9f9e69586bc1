"""A vocabulary of single bytes, for grammars."""

from __future__ import annotations

from kinetic.text.grammar import GrammarVocabulary

END, OPEN = 256, 257


class Bytes:
    """A tokenizer of single bytes, an end and a `<think>`."""

    n_tokens, bos_id, eos_id, end_ids = 258, None, END, frozenset({END})
    special_tokens = ()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else (b"\xff<end>", b"<think>")[token - 256]

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        return [OPEN] if text == "<think>" else list(text.encode())


VOCABULARY = GrammarVocabulary(Bytes())  # type: ignore[arg-type]


def reach(constraint, text: str) -> tuple[bool, int | None]:
    """Whether a text is a whole answer, and the first character that was not allowed."""
    for index, char in enumerate(text):
        for byte in char.encode():
            mask = constraint.mask()
            if mask is not None and not mask[byte]:
                return False, index
            constraint.accept(byte)
    mask = constraint.mask()
    return mask is not None and bool(mask[END]), None


def follows(constraint, text: str) -> bool:
    """Whether the constraint lets a text through, and then lets it end."""
    return reach(constraint, text)[0]
