"""Texts that end something, as the token sequences in which they can appear.

A text such as "\\n" may be a token, lie inside one, or begin at the end of one and go on in
the next. The sampler speaks token ids, so each way becomes a sequence of ids.

*Source*: llama.cpp's DRY sampler, `get_overlapping_token_sequences`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetic.text.tokenizer import Tokenizer

MAX_TAIL = 20
"""Ids of a sequence after its first; a longer text is cut there."""


def token_sequences(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The sequences of every text, each once, in ascending order."""
    wanted = [text for text in texts if text]
    tails: dict[bytes, tuple[int, ...]] = {}
    for text in wanted:
        data = text.encode()
        for cut in range(1, len(data)):
            rest = data[cut:].decode("utf-8", "ignore")
            tails[data[cut:]] = tuple(tokenizer.encode(rest)[:MAX_TAIL])
    found: set[tuple[int, ...]] = set()
    for token in range(tokenizer.n_tokens):
        word = tokenizer.token_bytes(token)
        for text in wanted:
            data = text.encode()
            if data in word:
                found.add((token,))
                continue
            for cut in range(1, len(data)):
                if word.endswith(data[:cut]):
                    found.add((token, *tails[data[cut:]]))
    return tuple(sorted(found))
