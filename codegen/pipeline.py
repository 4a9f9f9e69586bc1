"""From a model's graph to a program for one device class: the table of contents.

    graph
      fuse-gates        silu(gate) * up                 -> glu
      lower-experts     experts                         -> route, expert_rows, expert_matmul, ...
      lower-products    linear                          -> quantize, matmul
      fuse-attention    norm, rope, attention           -> rope_write, attend
      fuse-text-attention  the same where rows see a whole text
      fuse-quantize     norm / glu, then quantize       -> one walk
      fuse-residual     matmul, then add                -> matmul into the residual
    schedule            nodes -> kernel launches, barriers, memory plan
    kernels             the functions that the launches name -> object code (cached)
    program

`kinetic show MODEL --after PASS` prints the graph after any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kinetic.codegen.kernels.cpu.pool import pool
from kinetic.codegen.objects import cached_object, object_key
from kinetic.codegen.passes.base import Pass
from kinetic.codegen.passes.fuse_attention import FUSE_ATTENTION
from kinetic.codegen.passes.fuse_encoder import FUSE_TEXT_ATTENTION
from kinetic.codegen.passes.fuse_rows import FUSE_GATES, FUSE_QUANTIZE, FUSE_RESIDUAL
from kinetic.codegen.passes.lower_experts import LOWER_EXPERTS
from kinetic.codegen.passes.lower_products import LOWER_PRODUCTS
from kinetic.codegen.passes.schedule import Schedule, Scheduler
from kinetic.codegen.targets.llvm_ir import Function
from kinetic.codegen.targets.llvm_x86 import CpuTarget, compile_object, link, module_text
from kinetic.errors import InternalError, UsageError
from kinetic.ir.graph import Graph
from kinetic.ir.program import Program
from kinetic.ir.verify import verify

CPU_PASSES: tuple[Pass, ...] = (
    FUSE_GATES,
    LOWER_EXPERTS,
    LOWER_PRODUCTS,
    FUSE_ATTENTION,
    FUSE_TEXT_ATTENTION,
    FUSE_QUANTIZE,
    FUSE_RESIDUAL,
)
"""The passes of every CPU class, in order."""


def run_passes(
    graph: Graph,
    passes: tuple[Pass, ...] = CPU_PASSES,
    *,
    after: str | None = None,
    observe: Callable[[str, Graph], None] | None = None,
) -> Graph:
    """The graph after the passes, or after the one named `after`.

    `observe` sees the graph after each pass, checked. Without it only the last graph is
    checked, since checking each costs as much again; where that check fails, the passes
    run once more to find the one to blame.

    *Raises* `UsageError` for an unknown pass name; `InternalError`, naming the pass,
    where a pass breaks a rule of the IR.
    """
    known = [p.name for p in passes]
    if after is not None:
        if after not in known:
            raise UsageError(f"no pass is called {after!r}; the passes are {', '.join(known)}")
        passes = passes[: known.index(after) + 1]
    if observe is not None:
        return _run_checked(graph, passes, observe)
    try:
        result = graph
        for p in passes:
            result = p.run(result)
        verify(result)
    except InternalError:
        return _run_checked(graph, passes, lambda name, seen: None)
    return result


def _run_checked(
    graph: Graph, passes: tuple[Pass, ...], observe: Callable[[str, Graph], None]
) -> Graph:
    """The passes with a check after each; errors name the pass."""
    for p in passes:
        try:
            graph = p.run(graph)
            verify(graph, after=p.name)
        except InternalError as error:
            raise InternalError(f"pass {p.name}: {error}") from error
        observe(p.name, graph)
    return graph


MAX_ROWS = 512
"""Rows of one step; longer prompts run in chunks of this size."""
MAX_OUTPUTS = 64
"""Rows of one step whose outputs may be wanted."""


def schedule(
    graph: Graph,
    target: CpuTarget,
    *,
    kv_type: str = "f16",
    max_rows: int = MAX_ROWS,
    max_outputs: int = MAX_OUTPUTS,
) -> Schedule:
    """The launches of a lowered graph and everything they name."""
    return Scheduler(graph, target, kv_type, max_rows, max_outputs).run()


def kernel_functions(plan: Schedule) -> list[Function]:
    """The functions behind a schedule's kernels, and the worker pool's; each once."""
    found: dict[str, Function] = {f.name: f for f in pool()}
    for make in plan.kernels.values():
        for function in make():
            found.setdefault(function.name, function)
    return list(found.values())


def compile_graph(
    graph: Graph,
    target: CpuTarget,
    *,
    kv_type: str = "f16",
    max_rows: int = MAX_ROWS,
    max_outputs: int = MAX_OUTPUTS,
    object_cache: Path | None = None,
) -> Program:
    """Compile a model for a CPU class.

    `object_cache` is the folder that keeps machine code between runs (None: no cache).

    *Raises* `UnsupportedError` where the class has no kernel for what the graph asks.
    """
    ir_hash = graph.hash()
    lowered = run_passes(graph)
    plan = schedule(lowered, target, kv_type=kv_type, max_rows=max_rows, max_outputs=max_outputs)
    exported = [*plan.kernels, "pool_worker", "pool_run"]

    def make() -> bytes:
        return compile_object(target, module_text(target, kernel_functions(plan)))

    def link_program() -> Mapping[str, int]:
        if object_cache is None:
            return link(make(), exported)
        key = object_key(target.key, exported)
        return link(cached_object(object_cache, key, make), exported)

    return Program(
        device_class=target.device_class,
        ir_hash=ir_hash,
        kv_type=kv_type,
        max_rows=max_rows,
        max_outputs=max_outputs,
        launches=tuple(plan.launches),
        packed=tuple(plan.packed.values()),
        vectors=tuple(plan.vectors.values()),
        caches=plan.caches,
        states=plan.states,
        hidden=next((n.get("width", int) for n in graph if n.op == "hidden"), 0),
        tables=tuple(plan.tables),
        outputs=plan.outputs,
        arena_bytes=plan.arena_bytes,
        state_bytes=plan.state_bytes,
        whole_texts=plan.whole_texts,
        n_positions=plan.n_positions,
        link=link_program,
    )
