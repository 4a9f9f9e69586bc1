"""Attention: caches, rope and the writing of keys and values, the walk over pages."""

from __future__ import annotations

from kinetic.codegen.kernels.cpu.attention import (
    HeadShape,
    Rotation,
    attention,
    rope_write,
    rope_write_name,
)
from kinetic.codegen.passes.schedule.core import (
    STEP,
    Region,
    Scheduler,
    emits,
    float_arg,
    int_arg,
)
from kinetic.errors import UnsupportedError
from kinetic.ir.cpu_abi import ROWS
from kinetic.ir.graph import Node
from kinetic.ir.program import Arg, ArgKind, CacheLayout, RopeTable
from kinetic.ir.types import TensorType


def cache_of(s: Scheduler, name: str) -> CacheLayout:
    """The layout of a cache, declared on first use."""
    if name not in s.out.caches:
        spec = s.graph.meta.caches[name]
        if spec.kind != "attention" or spec.k != spec.v:
            raise UnsupportedError(
                f"cache {name}: keys {spec.k} wide and values {spec.v} wide have no kernel "
                f"in {s.target.device_class}"
            )
        shape = HeadShape(spec.k, 1, _kv_bytes(s))
        s.out.caches[name] = CacheLayout(
            spec.heads, spec.k, spec.heads * shape.page_bytes, spec.window
        )
    return s.out.caches[name]


def _kv_bytes(s: Scheduler) -> int:
    return 2 if s.kv_type == "f16" else 4


def head_shape(
    s: Scheduler, q: Node, cache: CacheLayout, *, softcap: bool = False, sinks: bool = False
) -> HeadShape:
    assert isinstance(q.type, TensorType)
    heads, width = q.type.shape[1:]
    assert isinstance(heads, int) and isinstance(width, int)
    if width % ROWS:
        raise UnsupportedError(
            f"%{q.name}: heads of {width} channels; the CPU kernels need a multiple of {ROWS}"
        )
    return HeadShape(width, heads // cache.heads, _kv_bytes(s), softcap=softcap, sinks=sinks)


@emits("rope_write")
def _rope_write(s: Scheduler, node: Node, index: int) -> None:
    q, k, v = node.arg("q"), node.maybe("k"), node.maybe("v")
    name = node.get("cache", str)
    cache = cache_of(s, name)
    shape = head_shape(s, q, cache)
    last = node.get("norm_last", bool)
    turn = Rotation(node.get("kind", str), node.get("rot", int), last)
    q_norm, k_norm = node.maybe("q_norm"), node.maybe("k_norm")
    normed, target = q_norm is not None, s.target
    kernel = s.need(
        rope_write_name(shape, turn, normed=normed),
        lambda: [rope_write(target, shape, turn, normed=normed)],
    )
    cos, sin = _table(s, node)
    written = [x for x in (k, v) if x is not None]
    reads = [s.region(x) for x in (q, *written)]
    s.order_reads(reads)
    s.take_over(node, q, index, written)
    pages: Region = (f"cache {name}", 0, 1)
    turned, copied, touched = s.place[s.root(node)], None, []
    if k is not None and v is not None:
        # Keys are turned where they lie.
        if not s.is_free(k, index, [q, v]):
            copied = s.copy(node, k)
        turned = copied or s.place[s.root(k)]
        touched = [("arena", *turned), pages]
    s.launch(
        kernel,
        [
            s.buffer(node),
            Arg(ArgKind.BUFFER, turned[0]),
            s.buffer(v or node),
            cos,
            sin,
            Arg(ArgKind.CACHE_K, name),
            Arg(ArgKind.CACHE_V, name),
            int_arg(cache.page_bytes),
            s.vector(q_norm),
            s.vector(k_norm),
            float_arg(node.get("eps", float)),
            int_arg(shape.shared * cache.heads),
            int_arg(cache.heads if written else 0),
            STEP,
        ],
        node,
        reads,
        [s.region(node), *touched],
    )
    if copied is not None:
        s.arena.release(copied)


def _table(s: Scheduler, node: Node) -> tuple[Arg, Arg]:
    """The rope table of a node, shared by all that ask for the same angles."""
    if node.get("kind", str) == "none":
        return int_arg(0), int_arg(0)
    names = ("rot", "base", "scaling", "factor", "n_ctx_orig", "attn_factor")
    factors = node.maybe("factors")
    table = RopeTable(
        tuple((n, node.attrs[n]) for n in names),
        None if factors is None else factors.get("name", str),
    )
    if table not in s.out.tables:
        s.out.tables.append(table)
    number = s.out.tables.index(table)
    return Arg(ArgKind.COS, number), Arg(ArgKind.SIN, number)


@emits("attend")
def _attend(s: Scheduler, node: Node, index: int) -> None:
    q = node.arg("q")
    name = node.get("cache", str)
    cache, cap = cache_of(s, name), node.optional("softcap", float)
    sinks, target = node.maybe("sinks"), s.target
    shape = head_shape(s, q, cache, softcap=cap is not None, sinks=sinks is not None)
    for kernel in ("attend", "attend_merge"):
        s.need(f"{kernel}_{shape.suffix}", lambda: attention(target, shape))
    s.out.state_bytes = max(s.out.state_bytes, shape.state_bytes)
    reads = [s.region(q), (f"cache {name}", 0, 1)]
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
        float_arg(cap or 0.0),
        float_arg(1 / cap if cap else 0.0),
        STEP,
        *([] if sinks is None else [s.vector(sinks)]),
    ]
    scratch: Region = ("scratch", 0, 1)
    writes = [s.region(node), scratch]
    s.launch(f"attend_{shape.suffix}", args, node, reads, writes)
    s.launch(f"attend_merge_{shape.suffix}", args, node, [scratch], [s.region(node)])
