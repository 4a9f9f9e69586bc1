"""From tokens back to text, at once or as they come."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns a stream of token ids into text that never ends inside a character.

    Bytes that can still become a character are held back; bytes that cannot become U+FFFD.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that a token completes, possibly none."""
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        """What is left at the end of a stream: U+FFFD for a character that never ended."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def clean_up_spaces(data: bytes) -> bytes:
    """Remove the spaces that English spelling would not have.

    *Source*: Transformers' clean_up_tokenization_spaces in llama.cpp's three passes: before
    ? ! . and , ; around a lone apostrophe; before 's 'm 're and 've.
    """
    out = bytearray(data[:1])
    for i in range(1, len(data)):
        if data[i - 1] == 0x20 and data[i] in b"?!.,":
            out.pop()
        out.append(data[i])
    data, out = bytes(out), bytearray(out[:1])
    i = 1
    used = -1  # a space that one apostrophe removed does not serve the next
    while i < len(data):
        if (
            data[i] == 0x27
            and data[i - 1] == 0x20
            and i - 1 != used
            and data[i + 1 : i + 2] == b" "
        ):
            out.pop()
            i += 1
            used = i
            out.append(0x27)
        else:
            out.append(data[i])
        i += 1
    data, out = bytes(out), bytearray(out[:1])
    for i in range(1, len(data)):
        if data[i - 1] == 0x20 and data[i] == 0x27:
            tail = data[i + 1 : i + 3]
            if tail[:1] in (b"s", b"m") or tail in (b"re", b"ve"):
                out.pop()
        out.append(data[i])
    return bytes(out)
