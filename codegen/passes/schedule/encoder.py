"""Encoders: norms, positions, attention over whole texts, pooling."""

from __future__ import annotations

from dataclasses import replace

from kinetic.codegen.kernels.cpu import encoder as kernels
from kinetic.codegen.kernels.cpu.attention import attention
from kinetic.codegen.passes.schedule.attention import cache_of, head_shape
from kinetic.codegen.passes.schedule.core import (
    STEP,
    Region,
    Scheduler,
    dense_width,
    emits,
    float_arg,
    int_arg,
    row_bytes,
)
from kinetic.ir.graph import Node
from kinetic.ir.program import Arg, ArgKind
from kinetic.ir.types import WeightType


@emits("embed_positions")
def _embed_positions(s: Scheduler, node: Node, index: int) -> None:
    table, target = node.arg("W"), s.target
    assert isinstance(table.type, WeightType)
    kernel = s.need("embed_positions", lambda: [kernels.embed_positions(target)])
    width = dense_width(node, "the embedding of positions")
    s.out.n_positions = min(s.out.n_positions or table.type.shape[0], table.type.shape[0])
    widened = s.vector(table)
    s.simple(node, index, kernel, lambda: [widened, s.buffer(node), int_arg(width), STEP])


@emits("layer_norm")
def _layer_norm(s: Scheduler, node: Node, index: int) -> None:
    x, bias, target = node.arg("x"), node.maybe("bias"), s.target
    biased = bias is not None
    kernel = s.need(
        kernels.layer_norm_name(biased=biased),
        lambda: [kernels.layer_norm(target, biased=biased)],
    )
    width = dense_width(x, "a norm's input")
    vectors = s.vector(node.arg("w")), s.vector(bias)
    s.simple(
        node,
        index,
        kernel,
        lambda: [
            s.buffer(x),
            *vectors,
            s.buffer(node),
            int_arg(width),
            float_arg(1 / (width // 4)),
            float_arg(node.get("eps", float)),
            s.count(node),
        ],
    )


@emits("add_row")
def _add_row(s: Scheduler, node: Node, index: int) -> None:
    x, target = node.arg("x"), s.target
    kernel = s.need("add_row", lambda: [kernels.add_row(target)])
    width, row = dense_width(x, "a sum"), s.vector(node.arg("w"))
    s.simple(
        node,
        index,
        kernel,
        lambda: [s.buffer(x), row, s.buffer(node), int_arg(width), s.count(node)],
    )


@emits(*kernels.ACTIVATIONS)
def _activation(s: Scheduler, node: Node, index: int) -> None:
    x, op, target = node.arg("x"), node.op, s.target
    kernel = s.need(f"map_{op}", lambda: [kernels.activation(target, op)])
    s.simple(
        node,
        index,
        kernel,
        lambda: [s.buffer(x), s.buffer(node), int_arg(row_bytes(node)), s.count(node)],
    )


@emits("pool")
def _pool(s: Scheduler, node: Node, index: int) -> None:
    x, kind, target = node.arg("x"), node.get("kind", str), s.target
    kernel = s.need(f"pool_{kind}", lambda: [kernels.pool(target, kind)])
    width = dense_width(x, "what is pooled")
    s.out.whole_texts = True
    s.simple(node, index, kernel, lambda: [s.buffer(x), s.buffer(node), int_arg(width), STEP])


@emits("attend_text")
def _attend_text(s: Scheduler, node: Node, index: int) -> None:
    q, name, target = node.arg("q"), node.get("cache", str), s.target
    cache = cache_of(s, name)
    shape = replace(head_shape(s, q, cache), texts=True)
    for kernel in ("attend", "attend_merge"):
        s.need(f"{kernel}_{shape.suffix}", lambda: attention(target, shape))
    s.out.state_bytes = max(s.out.state_bytes, shape.state_bytes)
    s.out.whole_texts = True
    reads: list[Region] = [s.region(q), (f"cache {name}", 0, 1)]
    s.order_reads(reads)
    s.allocate(node)
    args = [
        s.buffer(q),
        Arg(ArgKind.CACHE_K, name),
        Arg(ArgKind.CACHE_V, name),
        s.buffer(node),
        Arg(ArgKind.SCRATCH),
        int_arg(cache.page_bytes),
        int_arg(cache.heads),
        int_arg(node.optional("window", int) or 0),
        float_arg(node.get("scale", float)),
        *[float_arg(0.0)] * 2,  # no softcap
        STEP,
    ]
    scratch: Region = ("scratch", 0, 1)
    s.launch(f"attend_{shape.suffix}", args, node, reads, [s.region(node), scratch])
    s.launch(f"attend_merge_{shape.suffix}", args, node, [scratch], [s.region(node)])
