"""LoRA adapters merged into a model's weights at load.

    W + scale * alpha / rank * B A        held in F32, one matrix at a time

The product is summed over the rank in order, one multiplication and one addition each, so a
merged model has one meaning on every machine.

*Source*: the files that llama.cpp's `convert_lora_to_gguf.py` writes; llama.cpp's
`src/llama-adapter.cpp` for what the scale means.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import ModelFileError, UnsupportedError, UsageError
from kinetic.ir.gguf import GGUFFile, TensorInfo, display_path, printable
from kinetic.ir.quant import by_ggml_id
from kinetic.ir.quant.decode import as_blocks, dequantize

Floats = NDArray[np.float32]

_BLOCK = 1 << 16
"""Values merged at a time: what stays in a CPU's cache."""
_PARTS = (".lora_a", ".lora_b")


@dataclass(frozen=True)
class Pair:
    """An adapter's two matrices for one weight. *Shapes*: a [rank, K], b [N, rank]."""

    a: Floats
    b: Floats
    scale: np.float32


def merge(model: GGUFFile, adapters: Iterable[tuple[str | os.PathLike[str], float]]) -> None:
    """Make an open model's adapted matrices appear as merged F32 ones; call it before the file
    is used. `adapters` are paths and scales; several for one matrix add up in order.

    *Raises* `UnsupportedError` for an adapter of another kind, or one that changes embeddings or
    experts; `ModelFileError` for one of another model.
    """
    pairs: dict[str, list[Pair]] = {}
    identities = []
    for path, scale in adapters:
        if not math.isfinite(scale):
            raise UsageError(f"an adapter cannot have the scale {scale}; give a number like 1.0.")
        with GGUFFile.open(path) as adapter:
            _check(adapter, model)
            for name, pair in _pairs(adapter, model, scale):
                pairs.setdefault(name, []).append(pair)
            identities.append(f"{adapter.identity()} {np.float32(scale).tobytes().hex()}")
    for name, found in pairs.items():
        info = model.tensors[name]
        model.replace(name, partial(_merged, info, model.data(name), found))
    model.add_identity("\n".join(identities))


def _check(adapter: GGUFFile, model: GGUFFile) -> None:
    """Whether this is a LoRA adapter for this architecture."""
    where = display_path(adapter.path)
    kind = adapter.get_str("general.type", "model")
    if kind != "adapter":
        raise UnsupportedError(
            f"{where} is a {printable(kind)}, not an adapter; --lora takes what llama.cpp's "
            "convert_lora_to_gguf.py writes"
        )
    kind = adapter.get_str("adapter.type", "")
    if kind != "lora" or "adapter.alora.invocation_tokens" in adapter.metadata:
        shown = "activated LoRA" if kind == "lora" else printable(kind) or "nameless"
        raise UnsupportedError(f"{where} is a {shown} adapter; only LoRA adapters can be merged")
    if adapter.architecture != model.architecture:
        raise ModelFileError(
            f"{where} is made for {printable(adapter.architecture)} and the model is "
            f"{printable(model.architecture)}; use it with the model that it was trained on"
        )


def _pairs(adapter: GGUFFile, model: GGUFFile, scale: float) -> list[tuple[str, Pair]]:
    """The adapter's matrices by the weight they change, each checked against it."""
    where = display_path(adapter.path)
    names = list(dict.fromkeys(_weight_of(adapter, name) for name in adapter.tensors))
    if not names:
        raise ModelFileError(f"{where} adapts no weights; convert the adapter again")
    alpha = np.float32(adapter.get_float("adapter.lora.alpha", 0.0))
    found = []
    for name in names:
        shown = printable(name)
        a, b = (adapter.tensors.get(name + part) for part in _PARTS)
        if a is None or b is None:
            raise ModelFileError(
                f"{where} has one of lora_a and lora_b for {shown}; convert the adapter again"
            )
        info = model.tensors.get(name)
        if info is None:
            raise ModelFileError(
                f"{where} adapts {shown}, which the model lacks; use it with the model that it "
                "was trained on"
            )
        if name == "token_embd.weight" or len(info.shape) != 2 or "_exps." in name:
            what = "the token embeddings" if name == "token_embd.weight" else "expert tensors"
            what = what if len(info.shape) > 1 else "vectors"
            raise UnsupportedError(
                f"{where} adapts {shown}: adapters on {what} are not supported; merge it with "
                "llama.cpp's llama-export-lora"
            )
        (n, k), rank = info.shape, a.shape[0]
        if a.shape != (rank, k) or b.shape != (n, rank):
            raise ModelFileError(
                f"{where} has matrices of {_size(a)} and {_size(b)} for {shown}, which is "
                f"{_size(info)}; use it with the model that it was trained on"
            )
        share = np.float32(scale) * alpha / np.float32(rank) if alpha else np.float32(scale)
        found.append((name, Pair(_floats(adapter, a), _floats(adapter, b), np.float32(share))))
    return found


def _weight_of(adapter: GGUFFile, name: str) -> str:
    """The weight that one of an adapter's tensors belongs to."""
    for part in _PARTS:
        if name.endswith(part):
            return name.removesuffix(part)
    raise UnsupportedError(
        f"{display_path(adapter.path)} holds {printable(name)}, which is no LoRA matrix; merge it "
        "with llama.cpp's llama-export-lora"
    )


def _size(info: TensorInfo) -> str:
    return " x ".join(map(str, info.shape))


def _floats(file: GGUFFile, info: TensorInfo) -> Floats:
    return _widened(info, file.data(info.name)).copy()  # the file is closed before they are used


def _widened(info: TensorInfo, raw: NDArray[np.uint8]) -> Floats:
    fmt = by_ggml_id(info.type_id)
    return dequantize(fmt, as_blocks(fmt, raw)).reshape(info.shape)


def _merged(info: TensorInfo, raw: NDArray[np.uint8], pairs: list[Pair]) -> Floats:
    """A weight with its adapters, [N, K]."""
    n, k = info.shape
    out = np.empty((n, k), np.float32)
    row_bytes, step = info.nbytes // n, max(1, _BLOCK // k)
    for start in range(0, n, step):
        stop = min(n, start + step)
        part = info._replace(shape=(stop - start, k))
        rows = _widened(part, raw[start * row_bytes : stop * row_bytes]).astype(np.float32)
        for pair in pairs:
            rows += pair.scale * _product(pair.b[start:stop], pair.a)
        out[start:stop] = rows
    return out


def _product(b: Floats, a: Floats) -> Floats:
    """B A, summed in order: a matrix product of numpy's would depend on the machine."""
    total = b[:, :1] * a[:1]
    term = np.empty_like(total)
    for r in range(1, a.shape[0]):
        np.multiply(b[:, r : r + 1], a[r : r + 1], out=term)
        total += term
    return total
