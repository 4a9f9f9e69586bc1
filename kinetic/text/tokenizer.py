"""The tokenizer of a model file: text to token ids and back.

    encode:  special tokens are cut out, the rest goes to the vocabulary's model
    decode:  the bytes of each token, joined

Ids equal llama.cpp's for the same file, since that is what GGUF vocabularies mean.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, cast

import numpy as np

from kinetic.errors import UnsupportedError
from kinetic.text.bpe import BpeModel, byte_values, merges_of
from kinetic.text.detokenizer import StreamDecoder, clean_up_spaces
from kinetic.text.pretokenizers import Rules, rules_for
from kinetic.text.special_tokens import Span, SpecialToken, SpecialTokens
from kinetic.text.spm import SpmModel
from kinetic.text.ugm import UgmModel
from kinetic.text.vocab import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Metadata, Vocab
from kinetic.text.wpm import WpmModel

_SPACE = "\u2581".encode()
_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_SURROGATES = re.compile("[\ud800-\udfff]")
_CACHED_TOKENS = 1 << 16


class _Model(Protocol):
    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """Text to ids and ids to text for one vocabulary; threads may share it.

    `kind` is the file's tokenizer.ggml.model, `pre` its pre-tokenizer name. `add_bos` and
    `add_eos` say what `encode(add_special=True)` puts around a text.

    *Raises*: UnsupportedError for a kind of vocabulary or pre-tokenizer that is not known,
    ModelFileError for a damaged one.
    """

    def __init__(self, gguf: Metadata) -> None:
        self.kind = gguf.get_str("tokenizer.ggml.model")
        self.pre: str | None = gguf.get_str("tokenizer.ggml.pre", "") or None
        self._gguf = gguf
        self.vocab = Vocab(gguf)
        self.n_tokens = self.vocab.n_tokens
        self._rules: Rules | None = None
        self._space_prefix = gguf.get_bool("tokenizer.ggml.add_space_prefix", self.kind == "llama")
        self._token_bytes: dict[int, bytes] = {}
        self._lock = threading.Lock()  # a model learns words while it encodes
        self._model = self._make_model()
        special = self.vocab.special_id
        add_bos, add_eos, bos, eos = self._defaults()
        self.add_bos: bool = gguf.get_bool("tokenizer.ggml.add_bos_token", add_bos)
        self.add_eos: bool = gguf.get_bool("tokenizer.ggml.add_eos_token", add_eos)
        if self._rules is not None and self._rules.raw_utf8 and add_bos:
            self.add_bos = True  # Gemma 4 files say false and mean true
        named_bos, named_eos = special("bos_token_id"), special("eos_token_id")
        self.bos_id: int | None = bos if named_bos is None else named_bos
        self.eos_id: int | None = eos if named_eos is None else named_eos
        self._sep = special("seperator_token_id")
        if self._sep is None and self.kind == "bert":
            self._sep = 102 if self.n_tokens > 102 else None
        self.add_bos = self.add_bos and self.bos_id is not None
        self.add_eos = self.add_eos and self.eos_id is not None

    @classmethod
    def from_gguf(cls, gguf: Metadata) -> Tokenizer:
        """The tokenizer of an open model file."""
        return cls(gguf)

    def _make_model(self) -> _Model:
        gguf, vocab = self._gguf, self.vocab
        if self.kind in ("gpt2", "gemma4"):
            name = "gemma4" if self.kind == "gemma4" else self.pre
            self._rules = rules_for(name)
            return BpeModel(vocab, self._rules, merges_of(gguf, required=name != "kimi-k2"))
        if self.kind == "llama":
            return SpmModel(vocab)
        if self.kind == "bert":
            lower = gguf.get_bool("tokenizer.ggml.normalizer.lowercase", True)
            strip = gguf.get_bool("tokenizer.ggml.normalizer.strip_accents", lower)
            unknown = vocab.special_id("unknown_token_id")
            if unknown is None:
                unknown = self._id_in_range(100)
            return WpmModel(vocab, unknown, lower, strip)
        if self.kind == "t5":
            unknown = vocab.special_id("unknown_token_id")
            return UgmModel(
                vocab,
                cast("np.ndarray | None", gguf.get_array(_CHARSMAP, None)),
                self._id_in_range(2) if unknown is None else unknown,
                space_prefix=self._space_prefix,
                merge_spaces=gguf.get_bool("tokenizer.ggml.remove_extra_whitespaces", False),
            )
        raise UnsupportedError(
            f'tokenizer model "{self.kind}" is not supported yet; '
            "gpt2, gemma4, llama, bert and t5 vocabularies are"
        )

    def _defaults(self) -> tuple[bool, bool, int | None, int | None]:
        """What holds when the metadata is silent: add BOS, add EOS, BOS id, EOS id."""
        if self.kind == "llama":
            return True, False, self._id_in_range(1), self._id_in_range(2)
        if self.kind == "bert":
            return True, False, self._id_in_range(101), None
        if self.kind == "t5":
            return False, True, None, self._id_in_range(1)
        assert self._rules is not None
        bos = self._id_in_range(11) if self._rules.add_bos and self.kind == "gpt2" else None
        return self._rules.add_bos, False, bos, None

    def _id_in_range(self, token: int) -> int | None:
        return token if token < self.n_tokens else None

    # Special tokens.

    @property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends a generation."""
        return self.vocab.end_ids

    def is_control(self, token: int) -> bool:
        """Whether a token is markup that is never shown as text."""
        return bool(self.vocab.kinds[token] & (CONTROL | UNKNOWN))

    @functools.cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """The tokens that are matched whole: control, unknown and user-defined ones."""
        vocab = self.vocab
        chosen = (vocab.kinds & (CONTROL | UNKNOWN | USER_DEFINED)).nonzero()[0].tolist()
        lstrip, rstrip = self._stripping(chosen)
        tokens = []
        for token in chosen:
            text = vocab.text(token).decode("utf-8", "replace")
            tokens.append(
                SpecialToken(token, text, self.is_control(token), token in lstrip, token in rstrip)
            )
        return tuple(tokens)

    def _stripping(self, special: list[int]) -> tuple[set[int], set[int]]:
        """Tokens that swallow white space. GGUF does not store it; model names tell."""
        name = self._gguf.get_str("general.name", "").lower()
        architecture = self._gguf.get_str("general.architecture", "")
        find = self.vocab.find
        masks: tuple[str, ...] = ()
        pre = self.pre or ""
        if any(p in pre for p in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or (
            architecture in ("nomic-bert-moe", "jina-bert-v3")
        ):
            masks = ("<mask>",)
        elif "modern-bert" in name:
            masks = ("[MASK]",)
        elif "phi-3" in name or "phi3" in name:
            stripping = {*special, find("</s>")}
            kept = {find(t) for t in ("<unk>", "<s>", "<|endoftext|>")}
            return set(), {i for i in stripping - kept if i is not None}
        return {i for i in map(find, masks) if i is not None}, set()

    @functools.cached_property
    def _partition(self) -> SpecialTokens:
        return SpecialTokens(self.special_tokens)

    # Text to ids.

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text.

        `add_special` adds the BOS, EOS or separator that the vocabulary asks for;
        `parse_special` lets the text of a control token stand for the token.
        """
        return self._encode(text, add_special, parse_special, (), (), ())

    def encode_spans(
        self,
        text: str,
        user_spans: Sequence[Span],
        *,
        model_spans: Sequence[Span] = (),
        guarded: Collection[int] = (),
    ) -> list[int]:
        """The ids of a rendered prompt, in which users wrote the characters in `user_spans`.

        A control token is recognised only where it touches no span. A user-defined token in
        `guarded` (markup that a template uses, such as </think>) is not recognised in
        `user_spans` either, but is in `model_spans`, which hold what a model wrote earlier.
        """
        return self._encode(text, False, True, user_spans, model_spans, guarded)

    def encode_prompt(
        self,
        text: str,
        user_spans: Sequence[Span] = (),
        *,
        model_spans: Sequence[Span] = (),
        guarded: Collection[int] = (),
    ) -> list[int]:
        """The ids of a whole prompt with control tokens parsed and exactly one BOS in front.

        BOS is added if the vocabulary asks for it; any that the text itself starts with merge
        into one.
        """
        ids = self.encode_spans(text, user_spans, model_spans=model_spans, guarded=guarded)
        bos = self.bos_id
        if bos is None:
            return ids
        written = 0
        while written < len(ids) and ids[written] == bos:
            written += 1
        if self.kind == "bert" and self._sep is not None:
            return [bos, *ids[written:], self._sep]
        return [bos, *ids[written:]] if written or self.add_bos else ids

    def _encode(
        self,
        text: str,
        add_special: bool,
        parse_special: bool,
        user_spans: Sequence[Span],
        model_spans: Sequence[Span],
        guarded: Collection[int],
    ) -> list[int]:
        if not text.isascii():
            # A lone surrogate is no character; JSON can still deliver one.
            text = _SURROGATES.sub("\ufffd", text)
        out: list[int] = []
        if add_special and (self.add_bos or self.kind == "bert") and self.bos_id is not None:
            out.append(self.bos_id)
        after_special = True
        for fragment in self._partition.partition(
            text,
            parse_control=parse_special,
            user_spans=user_spans,
            model_spans=model_spans,
            guarded=guarded,
        ):
            if isinstance(fragment, int):
                out.append(fragment)
                after_special = True
                continue
            if self.kind == "llama" and self._space_prefix and after_special:
                fragment = " " + fragment
            with self._lock:
                out += self._model.encode(fragment)
            after_special = False
        if add_special:
            if self.kind == "bert":
                if self._sep is not None:
                    out.append(self._sep)
            elif self.add_eos and self.eos_id is not None:
                out.append(self.eos_id)
        return out

    # Ids to text.

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text; for a control token, its spelling."""
        found = self._token_bytes.get(token)
        if found is None:
            found = self._spell(token)
            if len(self._token_bytes) >= _CACHED_TOKENS:
                self._token_bytes.clear()
            self._token_bytes[token] = found
        return found

    def _spell(self, token: int) -> bytes:
        text = self.vocab.text(token)
        kind = int(self.vocab.kinds[token])
        if kind & (CONTROL | UNKNOWN | USER_DEFINED):
            return text
        if kind & BYTE:
            try:
                return bytes((int(text[3:5], 16),))
            except ValueError:
                return text
        if not kind & NORMAL:
            return b""
        if self._rules is None or self._rules.raw_utf8:
            return text.replace(_SPACE, b" ")
        values = byte_values()
        out = bytearray()
        for char in text.decode("utf-8", "replace"):
            value = values.get(char)
            if value is None:
                # The spelling is the reference's, so that a broken vocabulary shows alike.
                out += b"[UNK_BYTE_0x" + char.encode().hex().encode() + text + b"]"
            else:
                out.append(value)
        return bytes(out)

    def shown_bytes(self, token: int) -> bytes:
        """What a token adds to a text that is shown: nothing for a control token."""
        return b"" if self.is_control(token) else self.token_bytes(token)

    def decode_bytes(self, ids: Iterable[int], *, render_special: bool = False) -> bytes:
        """The bytes of a list of ids."""
        spell = self.token_bytes if render_special else self.shown_bytes
        return b"".join(map(spell, ids))

    def decode(self, ids: Iterable[int], *, render_special: bool = False) -> str:
        """The text of a list of ids, as a stream of them would give; nothing is tidied."""
        return self.decode_bytes(ids, render_special=render_special).decode("utf-8", "replace")

    def detokenize(self, ids: Sequence[int], *, render_special: bool = False) -> bytes:
        """The bytes of a whole text, tidied as its vocabulary prescribes.

        The space that the vocabulary puts in front is removed, and those before punctuation if
        the vocabulary's texts were written without them.
        """
        first = self.decode_bytes(ids[:1], render_special=render_special)
        if self._space_prefix and first.startswith(b" "):
            first = first[1:]
        data = first + self.decode_bytes(ids[1:], render_special=render_special)
        clean = self._rules.clean_spaces if self._rules is not None else self.kind == "bert"
        return clean_up_spaces(data) if clean else data

    def stream_decoder(self, *, render_special: bool = False) -> StreamDecoder:
        """A decoder for ids that come one by one."""
        return StreamDecoder(self.token_bytes if render_special else self.shown_bytes)
