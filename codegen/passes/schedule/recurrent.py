"""Recurrent blocks: their states, the walks through the rows, and the small ops around."""

from __future__ import annotations

from kinetic.codegen.kernels.cpu import recurrent as kernels
from kinetic.codegen.kernels.cpu.recurrent import ConvShape, HeadState, unit_lanes
from kinetic.codegen.kernels.cpu.rows import norm, norm_name
from kinetic.codegen.passes.schedule.core import (
    STEP,
    Scheduler,
    dense_width,
    emits,
    float_arg,
    int_arg,
    row_bytes,
)
from kinetic.errors import UnsupportedError
from kinetic.ir.cpu_abi import ROWS
from kinetic.ir.graph import Node
from kinetic.ir.program import Arg, ArgKind, StateLayout
from kinetic.ir.types import TensorType, WeightType

MOST_STATE_ROWS = 1024
"""A unit's part of a state lies on its thread's stack."""


def _state(s: Scheduler, node: Node) -> StateLayout:
    """The layout of the state that a node keeps."""
    name = node.get("cache", str)
    spec = s.graph.meta.caches[name]
    if spec.k > MOST_STATE_ROWS:
        raise UnsupportedError(
            f"%{node.name}: a state of {spec.k} rows; the CPU kernels take {MOST_STATE_ROWS}"
        )
    offset = sum(layout.nbytes for layout in s.out.states.values())
    return s.out.states.setdefault(name, StateLayout(spec.heads, spec.k, spec.v, offset))


def _state_args(node: Node) -> list[Arg]:
    return [Arg(ArgKind.STATE, node.get("cache", str)), Arg(ArgKind.STATE_STRIDE)]


def _extents(node: Node) -> tuple[int, int]:
    """Heads and width of a value."""
    assert isinstance(node.type, TensorType)
    heads, width = node.type.shape[1:]
    assert isinstance(heads, int) and isinstance(width, int)
    if width % ROWS:
        raise UnsupportedError(
            f"%{node.name}: heads of {width} channels; the CPU kernels need a multiple of {ROWS}"
        )
    return heads, width


@emits("short_conv")
def _short_conv(s: Scheduler, node: Node, index: int) -> None:
    x, w, bias, target = node.arg("x"), node.arg("w"), node.maybe("bias"), s.target
    assert isinstance(w.type, WeightType)
    width = dense_width(x, "the input of a convolution")
    act = node.optional("act", str)
    shape = ConvShape(w.type.shape[1], unit_lanes(width // 4), bias is not None, act)
    kernel = s.need(shape.name, lambda: [kernels.short_conv(target, shape)])
    _state(s, node)
    taps, added = s.vector(w, transposed=True), s.vector(bias)
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(x),
            taps,
            added,
            s.buffer(node),
            *_state_args(node),
            int_arg(width),
            STEP,
        ],
    )


@emits("delta_rule")
def _delta_rule(s: Scheduler, node: Node, index: int) -> None:
    q, k, v, beta, decay = (node.arg(n) for n in ("q", "k", "v", "beta", "decay"))
    (key_heads, rows), (heads, width), target = _extents(q), _extents(v), s.target
    shape = HeadState(rows, unit_lanes(width))
    kernel = s.need(kernels.delta_rule_name(shape), lambda: [kernels.delta_rule(target, shape)])
    _state(s, node)
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            *(s.buffer(x) for x in (q, k, v, beta, decay, node)),
            *_state_args(node),
            *(int_arg(row_bytes(x)) for x in (q, v, beta)),
            int_arg(heads),
            int_arg(key_heads),
            int_arg(4 * width),
            float_arg(node.get("scale", float)),
            STEP,
        ],
    )


@emits("ssm_scan")
def _ssm_scan(s: Scheduler, node: Node, index: int) -> None:
    x, dt, decay, into, out_of = (node.arg(n) for n in ("x", "dt", "decay", "B", "C"))
    (heads, width), (groups, rows), target = _extents(x), _extents(into), s.target
    shape = HeadState(rows, unit_lanes(width))
    kernel = s.need(kernels.ssm_scan_name(shape), lambda: [kernels.ssm_scan(target, shape)])
    _state(s, node)
    skip = s.vector(node.arg("d"))
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            *(s.buffer(y) for y in (x, dt, decay, into, out_of)),
            skip,
            s.buffer(node),
            *_state_args(node),
            *(int_arg(row_bytes(y)) for y in (x, dt, into)),
            int_arg(heads),
            int_arg(heads // groups),
            int_arg(4 * width),
            STEP,
        ],
    )


@emits("softplus", "decay")
def _by_column(s: Scheduler, node: Node, index: int) -> None:
    x, op, target = node.arg("x"), node.op, s.target
    kernel = s.need(f"columns_{op}", lambda: [kernels.by_column(target, op)])
    vector = s.vector(node.arg("bias" if op == "softplus" else "a"))
    s.simple(
        node,
        index,
        kernel,
        lambda: [s.buffer(x), vector, s.buffer(node), int_arg(row_bytes(x)), s.count(node)],
    )


@emits("l2_norm")
def _l2_norm(s: Scheduler, node: Node, index: int) -> None:
    """An RMS norm of the sum instead of the mean."""
    x, target = node.arg("x"), s.target
    assert isinstance(x.type, TensorType)
    heads = x.type.shape[1] if len(x.type.shape) == 3 else 1
    assert isinstance(heads, int)
    kernel = s.need(
        norm_name(weighted=False, block=None, heads=True),
        lambda: [norm(target, weighted=False, block=None, heads=True)],
    )
    width = dense_width(x, "a norm's input")
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(x),
            int_arg(0),
            s.buffer(node),
            int_arg(width),
            float_arg(1.0),
            float_arg(node.get("eps", float)),
            s.count(node),
            int_arg(heads),
        ],
    )


@emits("every_head")
def _every_head(s: Scheduler, node: Node, index: int) -> None:
    x, target = node.arg("x"), s.target
    (taken, width), first, step = _extents(node), node.get("first", int), node.get("step", int)
    kernel = s.need("every_head", lambda: [kernels.every_head(target)])
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(x),
            s.buffer(node),
            *(int_arg(4 * width * n) for n in (1, step, first)),
            int_arg(row_bytes(x)),
            int_arg(taken),
            s.count(node),
        ],
    )


@emits("gate_rows")
def _gate_rows(s: Scheduler, node: Node, index: int) -> None:
    y, x, target = node.arg("y"), node.arg("x"), s.target
    kernel = s.need("gate_rows", lambda: [kernels.gate_rows(target)])
    widths = [dense_width(value, "a gate") for value in (y, x)]
    vector = s.vector(node.arg("w"))
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(y),
            s.buffer(x),
            vector,
            s.buffer(node),
            *(int_arg(n) for n in widths),
            s.count(node),
        ],
    )
