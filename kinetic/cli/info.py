"""`kinetic info`: what a model file holds, from its header alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kinetic.cli.options import add_model, take_model
from kinetic.cli.parser import CommandParser
from kinetic.cli.terminal import printable, use_utf8, write_out

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic.ir.gguf import GGUFFile

_NOT_YET = "(not supported yet)"
_TOKENIZERS = ("gpt2", "gemma4", "llama", "bert", "t5")


class Weights(NamedTuple):
    """All tensors of one type."""

    type: str
    tensors: int
    bytes: int
    supported: bool


class Tokenizer(NamedTuple):
    """The tokenizer a file names; ids are shown as the tokens they stand for."""

    model: str
    pre: str | None
    tokens: int
    bos: str | None
    eos: str | None
    supported: bool


class Info(NamedTuple):
    """Everything `kinetic info` tells; None where the file does not say."""

    file: str
    name: str | None
    architecture: str
    supported: bool
    missing: str | None
    """What keeps Kinetic from running it; None when it runs."""
    size_bytes: int
    parameters: int
    context_length: int | None
    layers: int | None
    width: int | None
    prediction_block: bool
    weights: list[Weights]
    tokenizer: Tokenizer | None
    chat_template_bytes: int | None
    pooling: str | None = None
    """How an embedding model pools, `rank` for a reranker; None for one that generates text."""


def build_parser() -> CommandParser:
    """The options of `kinetic info`."""
    parser = CommandParser(
        "info", "kinetic info [options] <model>", "shows what a model file contains."
    )
    add_model(parser)
    parser.option("output", "--json", help="print one JSON object")
    return parser


def run(options: argparse.Namespace) -> int:
    """Describe one file. Raises: ModelFileError when it is missing or damaged."""
    use_utf8()
    path, _ = take_model(options, "info", alone=True)
    from kinetic.ir.gguf_split import open_model

    info = describe(path, open_model(path))
    write_out(as_json(info) if options.json else as_text(info))
    return 0


def describe(path: Path, gguf: GGUFFile) -> Info:
    """Collect what the header says."""
    from kinetic.cli.runs import missing
    from kinetic.families import SUPPORTED, pooling_of

    metadata = gguf.metadata
    architecture = _text(metadata, "general.architecture") or "unknown"

    def number(key: str) -> int | None:
        value = metadata.get(f"{architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    template = _text(metadata, "tokenizer.chat_template")
    return Info(
        file=path.name,
        name=_text(metadata, "general.name"),
        architecture=architecture,
        supported=architecture in SUPPORTED,
        missing=missing(gguf) or None,
        size_bytes=gguf.size,
        parameters=sum(prod(tensor.shape) for tensor in gguf.tensors.values()),
        context_length=number("context_length"),
        layers=number("block_count"),
        width=number("embedding_length"),
        prediction_block=bool(number("nextn_predict_layers")),
        weights=_weights(gguf),
        tokenizer=_tokenizer(metadata),
        chat_template_bytes=None if template is None else len(template.encode()),
        pooling=pooling_of(gguf) if "general.architecture" in metadata else None,
    )


def _standing(info: Info) -> str:
    """What is to be said of an architecture."""
    from kinetic.families import EXPERIMENTAL

    if info.architecture in EXPERIMENTAL:
        return " (experimental: there is no public reference to compare with)"
    return "" if info.supported else f" {_NOT_YET}"


def as_text(info: Info) -> str:
    """The report for people. Text from the file is shown with control characters spelled out."""
    rows: list[tuple[str, str]] = []

    def row(label: str, text: str) -> None:
        rows.append((label, printable(text).replace("\n", " ")))

    row("name", info.name or "none")
    row("architecture", info.architecture + _standing(info))
    if info.pooling == "rank":
        row("kind", "reranking model (scores, no text)")
    elif info.pooling is not None:
        row("kind", f"embedding model, {info.pooling} pooling (vectors, no text)")
    row("size", f"{info.size_bytes / 2**30:.2f} GiB, {info.parameters / 1e9:.2f} B parameters")
    row("context", _or_unknown(info.context_length, " tokens"))
    row("layers", f"{_or_unknown(info.layers)}, width {_or_unknown(info.width)}")
    row("prediction", "yes (drafts for speculative decoding)" if info.prediction_block else "no")
    for i, w in enumerate(info.weights):
        counted = "tensor " if w.tensors == 1 else "tensors"
        size = f"{w.type:<8}{w.tensors:>3} {counted} {w.bytes / 2**20:>10.1f} MiB"
        row("" if i else "weights", size + ("" if w.supported else f"  {_NOT_YET}"))
    row("tokenizer", _tokenizer_text(info.tokenizer))
    template = info.chat_template_bytes
    row("chat template", "none" if template is None else f"{template} bytes")
    row("runs", "yes" if info.missing is None else f"no, it needs: {info.missing}")
    return f"{printable(info.file)}\n" + "".join(f"  {label:<15}{text}\n" for label, text in rows)


def as_json(info: Info) -> str:
    """The report for programs: one JSON object."""
    fields = info._asdict()
    fields["weights"] = [weights._asdict() for weights in info.weights]
    fields["tokenizer"] = info.tokenizer._asdict() if info.tokenizer else None
    return json.dumps(fields, indent=2) + "\n"


def _or_unknown(value: int | None, unit: str = "") -> str:
    return "unknown" if value is None else f"{value}{unit}"


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _weights(gguf: GGUFFile) -> list[Weights]:
    """Tensors by type, the largest share first."""
    from kinetic.ir.quant import FORMATS

    known = {fmt.name for fmt in FORMATS.values()}
    counts: dict[str, tuple[int, int]] = {}
    for tensor in gguf.tensors.values():
        number, size = counts.get(tensor.type_name, (0, 0))
        counts[tensor.type_name] = (number + 1, size + tensor.nbytes)
    rows = [Weights(name, n, size, name in known) for name, (n, size) in counts.items()]
    return sorted(rows, key=lambda row: -row.bytes)


def _tokenizer(metadata: Mapping[str, object]) -> Tokenizer | None:
    model = _text(metadata, "tokenizer.ggml.model")
    if model is None:
        return None
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocabulary = tokens if hasattr(tokens, "__getitem__") and hasattr(tokens, "__len__") else ()

    def token(key: str, added: bool = True) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if not added or not isinstance(index, int) or isinstance(index, bool):
            return None
        if not 0 <= index < len(vocabulary):
            return None
        return str(vocabulary[index])

    # A file may name a BOS token and also say that it is never put before a text.
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token") is not False
    pre = _text(metadata, "tokenizer.ggml.pre")
    return Tokenizer(
        model=model,
        pre=pre,
        tokens=len(vocabulary),
        bos=token("bos", adds_bos),
        eos=token("eos"),
        supported=can_tokenize(model, pre),
    )


def can_tokenize(model: str, pre: str | None) -> bool:
    """Whether Kinetic has this tokenizer with these rules of cutting text."""
    if model != "gpt2":  # only byte-level BPE cuts text by named rules
        return model in _TOKENIZERS
    from kinetic.text.pretokenizers import SUPPORTED

    return not pre or pre in SUPPORTED


def _tokenizer_text(tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return "none"
    kind = f"{tokenizer.model} ({tokenizer.pre})" if tokenizer.pre else tokenizer.model
    ends = f"BOS {tokenizer.bos or 'none'}, EOS {tokenizer.eos or 'none'}"
    missing = "" if tokenizer.supported else f" {_NOT_YET}"
    return f"{kind}{missing}, {tokenizer.tokens} tokens, {ends}"
