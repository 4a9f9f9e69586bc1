"""Mixtures of experts: routing, rows grouped by expert, products, weighted sums."""

from __future__ import annotations

from kinetic.codegen.kernels.cpu.experts import (
    MAX_EXPERTS,
    RouteShape,
    expert_glu,
    expert_matmul,
    expert_rows,
    expert_sum,
    route,
)
from kinetic.codegen.kernels.cpu.layout import packed_size
from kinetic.codegen.kernels.cpu.product import Epilogue
from kinetic.codegen.kernels.cpu.repack import repack
from kinetic.codegen.passes.schedule.core import (
    Scheduler,
    dense_width,
    emits,
    float_arg,
    int_arg,
    row_bytes,
    weight_format,
)
from kinetic.errors import UnsupportedError
from kinetic.ir.cpu_abi import ROWS, act_stride
from kinetic.ir.graph import Node
from kinetic.ir.program import Arg, ArgKind, PackedWeight, Part
from kinetic.ir.quant.base import BlockFormat
from kinetic.ir.types import QuantType, RoutingType, WeightType


@emits("route")
def _route(s: Scheduler, node: Node, index: int) -> None:
    logits, found, target = node.arg("logits"), node.type, s.target
    assert isinstance(found, RoutingType)
    experts, bias = found.experts, node.maybe("select_bias")
    if experts > MAX_EXPERTS:
        raise UnsupportedError(
            f"%{node.name} chooses among {experts} experts; the CPU kernels take at most "
            f"{MAX_EXPERTS}"
        )
    norm, kind = node.get("norm_weights", bool), node.get("router", str)
    scale = node.get("weight_scale", float)
    own = node.maybe("expert_scale")
    shape = RouteShape(
        found.used, experts, norm, kind, bias is not None, scale != 1, own is not None
    )
    kernel = s.need(shape.name, lambda: [route(target, shape)])
    options = [s.vector(bias)] if shape.biased else []
    options += [float_arg(scale)] if shape.scaled else []
    options += [s.vector(own)] if shape.own_scales else []
    stride = int_arg(row_bytes(logits))
    s.simple(
        node,
        index,
        kernel,
        lambda: [s.buffer(logits), s.buffer(node), stride, s.count(node), *options],
    )


@emits("expert_rows")
def _expert_rows(s: Scheduler, node: Node, index: int) -> None:
    x, target = node.arg("x"), s.target
    block = x.type.block if isinstance(x.type, QuantType) else None
    kernel = s.need(
        "expert_rows" + (f"_{block}" if block else ""), lambda: [expert_rows(target, block)]
    )
    blocks = dense_width(x, "rows of experts") // 4 // (block or ROWS)
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(x),
            s.buffer(node),
            s.buffer(node.arg("routing")),
            int_arg(blocks),
            s.count(x),
        ],
    )


@emits("expert_matmul")
def _expert_matmul(s: Scheduler, node: Node, index: int) -> None:
    x, weight, routing = node.arg("x"), node.arg("W"), node.arg("routing")
    fmt, target = weight_format(weight), s.target
    assert isinstance(weight.type, WeightType) and isinstance(routing.type, RoutingType)
    rows, columns = weight.type.shape[1:]
    used = routing.type.used
    bias = node.maybe("bias")
    epilogue = Epilogue(bias is not None)
    kernel = s.need(
        f"expert_matmul_{fmt.name.lower()}{epilogue.suffix}",
        lambda: expert_matmul(fmt, target, epilogue),
    )
    biases = [] if bias is None else [s.vector(bias)]
    act_row, inner = dense_width(x, "a product's input"), columns
    if isinstance(fmt, BlockFormat):
        inner = columns // fmt.block
        act_row = inner * act_stride(fmt.block)
    matrix, groups = _expert_matrices(s, weight), rows // ROWS
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            matrix,
            s.buffer(x),
            s.buffer(node),
            s.buffer(routing),
            int_arg(inner),
            int_arg(groups),
            Arg(ArgKind.CHUNK, groups * used),
            int_arg(packed_size(fmt, rows, columns)),
            int_arg(act_row),
            int_arg(4 * rows),
            *biases,
        ],
    )


def _expert_matrices(s: Scheduler, node: Node) -> Arg:
    """The experts' matrices, or a part of each, packed one after the other as if they were one."""
    key, tensor, (start, experts) = s.key(node)
    assert isinstance(node.type, WeightType)
    rows, columns = node.type.shape[1:]
    if rows % ROWS:
        raise UnsupportedError(
            f"tensor {tensor} has {rows} outputs an expert; the CPU kernels need a multiple "
            f"of {ROWS}"
        )
    if key not in s.out.packed:
        fmt, target = weight_format(node), s.target
        kernel = s.need(f"repack_{fmt.name.lower()}", lambda: repack(fmt, target))
        size, span = packed_size(fmt, experts * rows, columns), (start * rows, experts * rows)
        s.out.packed[key] = PackedWeight(
            key, tensor, fmt.name, span, columns, size, kernel, _part(node)
        )
    return Arg(ArgKind.PACKED, key)


def _part(node: Node) -> Part | None:
    """Which rows of each expert's matrix a weight takes, if not all."""
    shape, part = node.attrs["shape"], node.attrs["part"]
    if part is None:
        return None
    assert isinstance(shape, tuple) and isinstance(part, tuple)
    first, count, rows = part[0], part[1], shape[1]
    assert isinstance(first, int) and isinstance(count, int) and isinstance(rows, int)
    return Part(first, count, rows)


@emits("expert_glu")
def _expert_glu(s: Scheduler, node: Node, index: int) -> None:
    act, block, target = node.get("act", str), node.optional("block", int), s.target
    kernel = s.need(
        f"expert_glu_{act}" + (f"_quantize_{block}" if block else ""),
        lambda: [expert_glu(target, act, block)],
    )
    inputs = [node.arg(name) for name in ("gate", "up")]
    width = int_arg(dense_width(inputs[0], "a gate"))
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            *(s.buffer(i) for i in inputs),
            s.buffer(node),
            s.buffer(node.arg("routing")),
            width,
        ],
    )


@emits("expert_sum")
def _expert_sum(s: Scheduler, node: Node, index: int) -> None:
    y, routing, residual = node.arg("y"), node.arg("routing"), node.maybe("residual")
    joined, target = residual is not None, s.target
    assert isinstance(routing.type, RoutingType)
    kernel = s.need(
        "expert_sum" + ("_add" if joined else ""),
        lambda: [expert_sum(target, residual=joined)],
    )
    width = dense_width(y, "a sum of experts")
    reads = [s.region(y), s.region(routing)]
    s.order_reads(reads)
    if residual is None:
        s.allocate(node)
    else:
        s.take_over(node, residual, index, [y])
    args = [s.buffer(y), s.buffer(routing), s.buffer(node)]
    args += [int_arg(width // 32), int_arg(routing.type.used), s.count(node)]
    s.launch(kernel, args, node, reads, [s.region(node)])
