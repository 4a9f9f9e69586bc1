"""Log-probabilities of a base model on disk, in llama-perplexity's format.

    "_logits_"  n_ctx u32  n_vocab i32  n_chunk i32  tokens i32 [n_chunk * n_ctx]
    then for each chunk, rows [n_ctx - 1 - n_ctx / 2, row_words(n_vocab)] of u16

The tokens are the text's own: where a model's text begins with BOS, it stands in for the first
token of a chunk when the chunk is run, and is not written.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Self

import numpy as np

from kinetic.errors import ModelFileError
from kinetic.ir.new_file import NewFile
from kinetic.perplexity.scores import Tokens, Words, row_words

MAGIC = b"_logits_"
_HEADER = struct.Struct("<8sIii")


def scored_rows(n_ctx: int) -> int:
    """Tokens of a chunk that are scored: those after its first half."""
    return n_ctx - 1 - n_ctx // 2


def is_base(path: Path) -> bool:
    """Whether a file begins as one of these does."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class BaseWriter:
    """Writes a file as chunks come; it has its name only when it is complete.

    *Raises* `KineticError` when the disk is too small or fills up.
    """

    def __init__(self, path: Path, n_ctx: int, n_vocab: int, tokens: Tokens) -> None:
        self.path = path
        n_chunk = len(tokens) // n_ctx
        size = _size(n_ctx, n_vocab, n_chunk)
        self._file = NewFile(path, size)
        self._file.write(_HEADER.pack(MAGIC, n_ctx, n_vocab, n_chunk))
        self._file.write(np.ascontiguousarray(tokens, "<i4").tobytes())

    def write(self, rows: Words) -> None:
        """More rows, in order."""
        self._file.write(np.ascontiguousarray(rows, "<u2").data)

    def finish(self) -> None:
        """Give the complete file its name."""
        self._file.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__(*exc)


class BaseReader:
    """Reads a file chunk by chunk.

    *Raises* `ModelFileError` for one that is none, or shorter than it says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from None
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(MAGIC):
            raise ModelFileError(
                f"{self.path} holds no log-probabilities; make it with --kl-divergence-base"
            )
        _, self.n_ctx, self.n_vocab, self.n_chunk = _HEADER.unpack(header)
        if not 4 <= self.n_ctx <= 1 << 24 or self.n_vocab < 1 or self.n_chunk < 1:
            raise ModelFileError(
                f"{self.path} says {self.n_chunk} chunks of {self.n_ctx} tokens of a vocabulary "
                f"of {self.n_vocab}, which cannot be; make it again with --kl-divergence-base"
            )
        wanted = _size(self.n_ctx, self.n_vocab, self.n_chunk)
        found = os.fstat(self._file.fileno()).st_size
        if found < wanted:  # before anything of that size is made room for
            raise ModelFileError(
                f"{self.path} has {found} bytes of {wanted}: writing it was broken off; make it "
                "again with --kl-divergence-base"
            )
        tokens = np.frombuffer(self._file.read(4 * self.n_chunk * self.n_ctx), "<i4")
        if not 0 <= tokens.min() <= tokens.max() < self.n_vocab:
            raise ModelFileError(
                f"{self.path} holds tokens outside its vocabulary of {self.n_vocab}; make it "
                "again with --kl-divergence-base"
            )
        self.tokens = tokens

    def read(self, count: int) -> Words:
        """The next `count` rows."""
        width = row_words(self.n_vocab)
        data = self._file.read(2 * count * width)
        if len(data) < 2 * count * width:
            raise ModelFileError(f"{self.path} became shorter while it was read; make it again")
        return np.frombuffer(data, "<u2").reshape(count, width)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def _size(n_ctx: int, n_vocab: int, n_chunk: int) -> int:
    per_chunk = 4 * n_ctx + 2 * scored_rows(n_ctx) * row_words(n_vocab)
    return _HEADER.size + n_chunk * per_chunk
