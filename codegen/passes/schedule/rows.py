"""Row ops: embedding, elementwise, norms, quantized activations, wanted rows."""

from __future__ import annotations

from kinetic.codegen.kernels.cpu import rows as row_kernels
from kinetic.codegen.passes.schedule.core import (
    STEP,
    Scheduler,
    dense_width,
    emits,
    float_arg,
    int_arg,
    row_bytes,
    weight_format,
)
from kinetic.ir.graph import Node
from kinetic.ir.program import Arg, ArgKind
from kinetic.ir.types import TensorType, WeightType


@emits("tokens", "weight", "split_heads", "merge_heads")
def _nothing(s: Scheduler, node: Node, index: int) -> None:
    """Token ids are in the step block, weights in place, views have their source's memory."""


@emits("embed")
def _embed(s: Scheduler, node: Node, index: int) -> None:
    table = node.arg("W")
    fmt = weight_format(table)
    assert isinstance(table.type, WeightType)
    columns = table.type.shape[1]
    kernel = s.need(f"embed_{fmt.name.lower()}", lambda: [row_kernels.embed(s.target, fmt)])
    row = columns // fmt.values * fmt.nbytes
    raw = Arg(ArgKind.RAW, table.get("name", str))
    dense_width(node, "the embedding")
    s.simple(
        node,
        index,
        kernel,
        lambda: [raw, int_arg(row), s.buffer(node), int_arg(columns), STEP],
    )


@emits("add", "mul", "silu", "sigmoid", "gelu_tanh")
def _map(s: Scheduler, node: Node, index: int, constant: float = 0.0, inverse: float = 0.0) -> None:
    op = node.op
    kernel = s.need(f"map_{op}", lambda: [row_kernels.elementwise(s.target, op)])
    values = [x for x in node.sources if s.root(x) in s.place]
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(values[0]),
            s.buffer(values[-1]),
            s.buffer(node),
            int_arg(row_bytes(node)),
            float_arg(constant),
            float_arg(inverse),
            s.count(node),
        ],
    )


@emits("scale")
def _scale(s: Scheduler, node: Node, index: int) -> None:
    _map(s, node, index, node.get("value", float))


@emits("softcap")
def _softcap(s: Scheduler, node: Node, index: int) -> None:
    cap = node.get("cap", float)
    _map(s, node, index, cap, 1 / cap)


@emits("rms_norm")
def _rms_norm(s: Scheduler, node: Node, index: int) -> None:
    _norm(s, node, index, None)


@emits("norm_quantize")
def _norm_quantize(s: Scheduler, node: Node, index: int) -> None:
    _norm(s, node, index, node.get("block", int))


def _norm(s: Scheduler, node: Node, index: int, block: int | None) -> None:
    x, w = node.arg("x"), node.maybe("w")
    assert isinstance(x.type, TensorType)
    weighted, target = w is not None, s.target
    heads = x.type.shape[1] if len(x.type.shape) == 3 else None
    assert heads is None or isinstance(heads, int)
    options = [] if heads is None else [int_arg(heads)]
    each = w is not None and isinstance(w.type, WeightType) and len(w.type.shape) == 2
    how = {"weighted": weighted, "heads": bool(options), "each": each}
    kernel = s.need(
        row_kernels.norm_name(block=block, **how),
        lambda: [row_kernels.norm(target, block=block, **how)],
    )
    width = dense_width(x, "a norm's input")
    weights = s.vector(w)
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(x),
            weights,
            s.buffer(node),
            int_arg(width),
            float_arg(1 / (width // 4)),
            float_arg(node.get("eps", float)),
            s.count(node),
            *options,
        ],
    )


@emits("quantize")
def _quantize(s: Scheduler, node: Node, index: int) -> None:
    block = node.get("block", int)
    kernel = s.need(f"quantize_{block}", lambda: [row_kernels.quantize(s.target, block)])
    x = node.arg("x")
    width = dense_width(x, "a product's input")
    s.simple(
        node,
        index,
        kernel,
        lambda: [s.buffer(x), s.buffer(node), int_arg(width), s.count(node)],
    )


@emits("glu")
def _glu(s: Scheduler, node: Node, index: int, block: int | None = None) -> None:
    act = node.get("act", str)
    name = f"glu_{act}" + (f"_quantize_{block}" if block else "")
    kernel = s.need(name, lambda: [row_kernels.glu(s.target, act, block)])
    gate, up = node.arg("gate"), node.arg("up")
    width = dense_width(gate, "a gate")
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(gate),
            s.buffer(up),
            s.buffer(node),
            int_arg(width),
            s.count(node),
        ],
    )


@emits("glu_quantize")
def _glu_quantize(s: Scheduler, node: Node, index: int) -> None:
    _glu(s, node, index, node.get("block", int))


@emits("temper")
def _temper(s: Scheduler, node: Node, index: int) -> None:
    kernel = s.need("temper", lambda: [row_kernels.temper(s.target)])
    x, scale, every = node.arg("x"), node.get("scale", float), node.get("every", int)
    dense_width(x, "the queries")
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(x),
            s.buffer(node),
            int_arg(row_bytes(node)),
            float_arg(scale),
            int_arg(every),
            STEP,
        ],
    )


@emits("take_outputs")
def _take_outputs(s: Scheduler, node: Node, index: int) -> None:
    kernel = s.need("take_outputs", lambda: [row_kernels.take_outputs(s.target)])
    x = node.arg("x")
    width = dense_width(x, "the outputs")
    s.simple(
        node,
        index,
        kernel,
        lambda: [s.buffer(x), s.buffer(node), int_arg(width), STEP],
    )
