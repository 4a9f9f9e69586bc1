"""The vocabulary of a GGUF file: tokens, their kinds, and the special ones.

Everything is found on demand, because start-up should not pay for 250,000 tokens that a
prompt never mentions.
"""

from __future__ import annotations

import functools
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import ModelFileError

# Token kinds, as flags. GGUF stores one kind per token; rules below may add CONTROL.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 4, 8, 16, 32
_KIND_FLAGS = np.array([0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE], np.uint8)

# Texts that end a generation or name a role in fill-in-the-middle, whatever their stored kind.
# Files name few of these in their metadata, so they are recognised as llama.cpp does, by text.
END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
)
_FIM_TEXTS = {
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<\uff5cfim\u2581begin\uff5c>",
        "<PRE>",
        "\u2581<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<SUF>",
        "\u2581<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<\uff5cfim\u2581end\uff5c>",
        "<MID>",
        "\u2581<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_FIM_KEYS = {
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
_NO_TOKEN = (-1, (1 << 32) - 1)
"""How converters write that there is no such token."""
_MUST_EXIST = (
    "bos_token_id",
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "unknown_token_id",
)
"""Special tokens that decide how a prompt reads or where an answer ends."""
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


class Strings(Protocol):
    """A sequence of strings whose bytes can be had without decoding (ir's StringArray)."""

    def __len__(self) -> int: ...

    def raw(self, index: int) -> bytes: ...

    def raw_items(self) -> list[bytes]: ...


class Metadata(Protocol):
    """What the text layer asks of a model file; kinetic.ir.gguf.GGUFFile is one."""

    def get_str(self, key: str, default: str = ...) -> str: ...

    def get_int(self, key: str, default: int | None = ...) -> int: ...

    def get_bool(self, key: str, default: bool | None = ...) -> bool: ...

    def get_array(self, key: str, default: object = ...) -> object: ...

    def get_strings(self, key: str, default: None = ...) -> Strings | None: ...


class Vocab:
    """Token texts, kinds and special ids.

    *Raises*: ModelFileError if the arrays do not match in length or an id is out of range.
    """

    def __init__(self, gguf: Metadata) -> None:
        self._gguf = gguf
        strings = gguf.get_strings("tokenizer.ggml.tokens")
        assert strings is not None  # a getter without a default demands the key
        self._strings = strings
        self.n_tokens = len(self._strings)
        self._stored_kinds = self._numbers("tokenizer.ggml.token_type", np.dtype("<i4"))
        self.scores = self._numbers("tokenizer.ggml.scores", np.dtype("<f4"))
        for name in _MUST_EXIST:
            self.special_id(name)

    def _numbers(self, key: str, dtype: np.dtype[np.generic]) -> NDArray[np.generic] | None:
        values = self._gguf.get_array(key, None)
        if values is None:
            return None
        allowed = "iuf" if dtype.kind == "f" else "iu"
        if not isinstance(values, np.ndarray) or values.dtype.kind not in allowed:
            raise ModelFileError(f"metadata key {key} must be an array of numbers")
        if len(values) < self.n_tokens:
            raise ModelFileError(
                f"metadata key {key} has {len(values)} entries for {self.n_tokens} tokens; "
                "convert the file again"
            )
        return values[: self.n_tokens].astype(dtype, copy=False)

    def special_id(self, name: str) -> int | None:
        """The id that `tokenizer.ggml.NAME` holds, or None if it is absent.

        One out of range is refused where answers depend on it. Others, such as a padding token
        that a converter put after the vocabulary, are in good files and change nothing here:
        they are taken as absent.

        *Raises*: ModelFileError.
        """
        key = f"tokenizer.ggml.{name}"
        value = self._gguf.get_int(key, None)
        if value is None or 0 <= value < self.n_tokens:
            return value
        if name in _MUST_EXIST and value not in _NO_TOKEN:
            raise ModelFileError(
                f"metadata key {key} is {value}, but the vocabulary has {self.n_tokens} tokens; "
                "convert the model again"
            )
        return None

    def text(self, token: int) -> bytes:
        """A token as the file spells it."""
        if not 0 <= token < self.n_tokens:
            raise IndexError(f"token id {token} is outside the vocabulary of {self.n_tokens}")
        return self._strings.raw(token) or b"[EMPTY_%d]" % token

    @functools.cached_property
    def ids(self) -> dict[bytes, int]:
        """Token text to id, for the whole vocabulary."""
        items = self._strings.raw_items()
        found = dict(zip(items, range(len(items)), strict=True))
        if found.pop(b"", None) is not None:
            for i, item in enumerate(items):
                if not item:
                    found[b"[EMPTY_%d]" % i] = i
        return found

    @functools.cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """The kind flags of every token, with the corrections that token texts call for."""
        if self._stored_kinds is None:
            kinds = np.full(self.n_tokens, NORMAL, np.uint8)
        else:
            stored = cast(NDArray[np.int32], self._stored_kinds)
            kinds = _KIND_FLAGS[np.where((stored < 0) | (stored > 6), 0, stored)]
        for token in self._named_ends:
            kinds[token] |= CONTROL
        for role, token in self.fim.items():
            # A role the metadata names leaves the token's kind alone; a recognised text does not.
            if all(self.special_id(key) is None for key in _FIM_KEYS[role]):
                kinds[token] |= CONTROL
        for shown in map(self.find, _ALWAYS_SHOWN):
            if shown is not None:
                kinds[shown] = USER_DEFINED
        for token in self._not_ends:
            kinds[token] = NORMAL if self.text(token) == b"</s>" else USER_DEFINED
        return kinds

    def find(self, text: str) -> int | None:
        """The id of a token by its text."""
        return self.ids.get(text.encode())

    @functools.cached_property
    def fim(self) -> dict[str, int]:
        """Fill-in-the-middle tokens by role, from the metadata or else by their usual texts."""
        out = {}
        for role, keys in _FIM_KEYS.items():
            named = [i for i in map(self.special_id, keys) if i is not None]
            known = [i for i in map(self.find, _FIM_TEXTS[role]) if i is not None]
            if named or known:
                out[role] = (named or known)[0]
        return out

    @functools.cached_property
    def _named_ends(self) -> frozenset[int]:
        return frozenset(i for i in map(self.find, END_TEXTS) if i is not None)

    @functools.cached_property
    def _not_ends(self) -> frozenset[int]:
        """Tokens with an ending's text that do not end anything in this vocabulary.

        In the harmony and solar formats <|end|> closes one message of several; in Gemma 4 and
        PLaMo </s> is an HTML tag.
        """
        texts = {self.text(i) for i in self._named_ends}
        out = set()
        call = b"<|call|>" in texts or b"<|calls|>" in texts
        if call and (b"<|return|>" in texts or b"<|flush|>" in texts):
            out.add(self.find("<|end|>"))
        if b"<|tool_response>" in texts:
            out.add(self.find("</s>"))
        return frozenset(i for i in out if i is not None)

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends a generation.

        *Source*: llama.cpp's end-of-generation set: the metadata's EOS, EOT and EOM, known
        texts, and the fill-in-the-middle tokens that separate files.
        """
        ids = set(self._named_ends)
        for name in ("eos_token_id", "eot_token_id", "eom_token_id"):
            named = self.special_id(name)
            if named is not None:
                ids.add(named)
        ids.update(i for role, i in self.fim.items() if role in ("fim_pad", "fim_rep", "fim_sep"))
        return frozenset(ids - self._not_ends)
