"""One quantization: from an open model to a new file, slice by slice.

plan     every tensor's type, checked before any work
run      slices of rows -> floats -> blocks, on threads; written in order
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.ir.gguf import GGUFFile, TensorInfo, display_path, printable
from kinetic.ir.gguf_writer import GGUFWriter, KeyValue, TensorPlan
from kinetic.ir.quant import FORMATS, by_ggml_id
from kinetic.ir.quant.decode import as_blocks, dequantize
from kinetic.quantize.encoders.compiled import WRITTEN_BY, encode
from kinetic.quantize.mixture import Architecture, Choice, Target, Wishes, choose, in_order

Floats = NDArray[np.float32]
Importance = Mapping[str, Floats]
Progress = Callable[[str, int, int], None]

FREELY_READ = ("F32", "F16", "BF16", "Q8_0")
"""Source types that lose nothing worth a warning; others need `allow_requantize`."""
QUANTIZATION_VERSION = 2
_SLICE = 1 << 20
"""Values of a slice: what a thread encodes at a time."""
_AHEAD = 3
"""Slices a thread may be ahead of the file."""


@dataclass(frozen=True)
class Plan:
    """What a run will do: the choices, in the file's order, and the metadata to write."""

    source: GGUFFile
    target: Target
    choices: list[Choice]
    metadata: list[KeyValue]
    importance: Importance = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def before(self) -> int:
        """Bytes of the source's tensors."""
        return sum(choice.info.nbytes for choice in self.choices)

    @property
    def after(self) -> int:
        """Bytes of the tensors to be written."""
        return sum(plan.nbytes for plan in self.tensors())

    def tensors(self) -> list[TensorPlan]:
        """The tensors to be written."""
        return [TensorPlan(c.info.name, c.info.shape, c.type_name) for c in self.choices]


def make_plan(
    source: GGUFFile,
    target: Target,
    wishes: Wishes | None = None,
    *,
    importance: Importance | None = None,
    extra: list[KeyValue] | None = None,
    allow_requantize: bool = False,
    strict: bool = False,
) -> Plan:
    """Decide every tensor's type, and refuse what cannot be done before work begins.

    *Raises* `UnsupportedError` for tensors of a quantized type without `allow_requantize`;
    `ModelFileError` for importance data of another model, or with `strict` for data that lacks
    some weights.
    """
    tensors = [source.tensors[name] for name in in_order(source.tensors)]
    has_importance = importance is not None
    choices = choose(
        tensors, Architecture.of(source), target, wishes or Wishes(), importance=has_importance
    )
    changed = [c for c in choices if c.type_name != c.info.type_name]
    _check_types(changed, allow_requantize)
    notes = _fallbacks(choices)
    if importance is not None:
        notes += _check_importance(changed, importance, strict)
    return Plan(
        source, target, choices, _metadata(source, target, extra or []), importance or {}, notes
    )


def _fallbacks(choices: list[Choice]) -> list[str]:
    """A sentence for each type that some tensors' rows do not fit."""
    count = Counter((c.fallback_from, c.type_name) for c in choices if c.fallback_from)
    return [
        f"{n} {'tensor has' if n == 1 else 'tensors have'} rows that are no whole number of "
        f"{wanted} blocks: {given} instead"
        for (wanted, given), n in count.items()
    ]


def _check_types(changed: list[Choice], allow_requantize: bool) -> None:
    for choice in changed:
        if choice.type_name != "F32" and choice.type_name not in WRITTEN_BY:
            raise UnsupportedError(
                f"{choice.type_name} is not written; there are F32, {', '.join(WRITTEN_BY)}"
            )
        columns = choice.info.shape[-1]
        if columns % FORMATS[choice.type_name].values:
            raise UnsupportedError(
                f"{printable(choice.info.name)} has rows of {columns} values, which "
                f"{choice.type_name} cannot hold; choose another type for it"
            )
    quantized = [c for c in changed if c.info.type_name not in FREELY_READ]
    if quantized and not allow_requantize:
        first = quantized[0].info
        raise UnsupportedError(
            f"{printable(first.name)} and {len(quantized) - 1} more tensors are quantized already "
            f"({first.type_name}), and quantizing them again loses quality: take the F16 model, "
            "or add --allow-requantize"
        )


def _check_importance(changed: list[Choice], importance: Importance, strict: bool) -> list[str]:
    """Data must have the model's widths; notes name the tensors without any."""
    without = []
    for choice in changed:
        info = choice.info
        found = importance.get(info.name)
        if found is None:
            if choice.type_name not in ("F32", "F16", "BF16", "Q8_0", "MXFP4"):
                without.append(printable(info.name))
        elif len(found) != info.shape[-1] * _experts(info) and info.name != "token_embd.weight":
            raise ModelFileError(
                f"the importance matrix has {len(found)} values for {printable(info.name)}, whose "
                f"rows need {info.shape[-1] * _experts(info)}; it belongs to another model"
            )
    if not without:
        return []
    listed = ", ".join(without[:8]) + (f" and {len(without) - 8} more" * (len(without) > 8))
    if strict:
        raise ModelFileError(
            f"the importance matrix has no data for {listed}; make one from more text, or leave "
            "--strict out to quantize these without"
        )
    return [f"no importance data, quantized without: {listed}"]


def _experts(info: TensorInfo) -> int:
    return info.shape[-3] if len(info.shape) > 2 else 1


def _metadata(source: GGUFFile, target: Target, extra: list[KeyValue]) -> list[KeyValue]:
    """The source's keys in their order, then those this run sets."""
    own = [
        KeyValue("general.quantization_version", "uint32", QUANTIZATION_VERSION),
        KeyValue("general.file_type", "uint32", target.file_type),
        *extra,
    ]
    dropped = {"split.no", "split.count", "split.tensors.count", *(pair.key for pair in own)}
    kept = [
        KeyValue(key, source.type_name(key), value)
        for key, value in source.metadata.items()
        if key not in dropped
    ]
    return kept + own


# The run. ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slice:
    """Rows of a tensor. *Units*: rows, counted over all experts."""

    choice: Choice
    start: int
    stop: int


def run(plan: Plan, path: Path, *, threads: int, progress: Progress | None = None) -> None:
    """Write the file. Memory is bounded by a few slices a thread.

    *Raises* `ModelFileError` for weights that are not finite; `KineticError` when the disk
    fills up.
    """
    done, total = 0, plan.before
    with (
        GGUFWriter(path, plan.metadata, plan.tensors(), alignment=plan.source.alignment) as writer,
        ThreadPoolExecutor(threads, thread_name_prefix="quantize") as pool,
    ):
        waiting: deque[tuple[_Slice, Future[NDArray[np.uint8]]]] = deque()
        try:
            for piece in _slices(plan):
                waiting.append((piece, pool.submit(_encoded, plan, piece)))
                if len(waiting) > _AHEAD * threads:
                    done += _write_next(plan, writer, waiting)
                    if progress is not None:
                        progress("quantize", done, total)
            while waiting:
                done += _write_next(plan, writer, waiting)
                if progress is not None:
                    progress("quantize", done, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        writer.finish()


def _write_next(
    plan: Plan, writer: GGUFWriter, waiting: deque[tuple[_Slice, Future[NDArray[np.uint8]]]]
) -> int:
    piece, future = waiting.popleft()
    writer.write(future.result().reshape(-1).data)
    info = piece.choice.info
    row_bytes = info.nbytes // max(1, _rows(info))
    plan.source.advise_dontneed(info.name, piece.start * row_bytes, piece.stop * row_bytes)
    return (piece.stop - piece.start) * row_bytes


def _rows(info: TensorInfo) -> int:
    return int(np.prod(info.shape[:-1], dtype=np.int64)) if info.shape else 1


def _slices(plan: Plan) -> Iterator[_Slice]:
    for choice in plan.choices:
        info = choice.info
        columns = info.shape[-1] if info.shape else 1
        step = max(1, _SLICE // max(1, columns))
        rows = _rows(info)
        per_expert = info.shape[-2] if len(info.shape) > 1 else rows
        start = 0
        while start < rows:
            stop = min(rows, start + step)
            if info.name in plan.importance:  # each expert has importance of its own
                stop = min(stop, (start // per_expert + 1) * per_expert)
            yield _Slice(choice, start, stop)
            start = stop


def _encoded(plan: Plan, piece: _Slice) -> NDArray[np.uint8]:
    info, wanted = piece.choice.info, piece.choice.type_name
    fmt = by_ggml_id(info.type_id) if info.type_name != wanted else None
    row_bytes = info.nbytes // _rows(info)
    raw = plan.source.data(info.name)[piece.start * row_bytes : piece.stop * row_bytes]
    if fmt is None:
        return raw
    rows = raw.reshape(piece.stop - piece.start, row_bytes)
    values = _as_floats(info, rows)
    if not np.isfinite(values).all():
        raise ModelFileError(
            f"{display_path(plan.source.path)}: {printable(info.name)} holds values that are not "
            "finite; the file is damaged, convert it again"
        )
    return encode(wanted, values, _importance_of(plan, piece))


def _as_floats(info: TensorInfo, rows: NDArray[np.uint8]) -> Floats:
    if info.type_name == "F32":
        return rows.view("<f4")
    if info.type_name == "F16":
        return rows.view("<f2").astype(np.float32)
    if info.type_name == "BF16":
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    fmt = by_ggml_id(info.type_id)
    return dequantize(fmt, as_blocks(fmt, rows))


def _importance_of(plan: Plan, piece: _Slice) -> Floats | None:
    info = piece.choice.info
    found = plan.importance.get(info.name)
    columns = info.shape[-1]
    if found is None or len(found) != columns * _experts(info):
        return None
    expert = piece.start // (info.shape[-2] if len(info.shape) > 1 else 1)
    return found[expert * columns : (expert + 1) * columns]
