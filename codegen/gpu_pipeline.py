"""From a model's graph to a program for a GPU class: the table of contents.

    graph
      fuse-gates, lower-experts, lower-products, fuse-residual    as on the CPU
    schedule            nodes -> dispatches, barriers, memory plan
    kernels             functions over the kernel builder -> SPIR-V
    program

A GPU class leaves attention unfused: rope, cache writes and segments are dispatches.
"""

from __future__ import annotations

from kinetic.codegen.passes.base import Pass
from kinetic.codegen.passes.fuse_rows import FUSE_GATES, FUSE_RESIDUAL
from kinetic.codegen.passes.gpu_schedule import GpuScheduler
from kinetic.codegen.passes.lower_experts import LOWER_EXPERTS
from kinetic.codegen.passes.lower_products import LOWER_PRODUCTS
from kinetic.codegen.pipeline import MAX_OUTPUTS, run_passes
from kinetic.codegen.targets import spirv
from kinetic.errors import UnsupportedError
from kinetic.ir.gpu_program import GpuProgram
from kinetic.ir.graph import Graph

VULKAN_CLASS = "vulkan"
GPU_PASSES: tuple[Pass, ...] = (FUSE_GATES, LOWER_EXPERTS, LOWER_PRODUCTS, FUSE_RESIDUAL)
"""The passes of every GPU class, in order."""
MAX_ROWS = 64
"""Rows of one step: partial attention is kept for all of them and all segments."""


def compile_for_vulkan(
    graph: Graph,
    *,
    kv_type: str = "f16",
    max_rows: int = MAX_ROWS,
    max_outputs: int = MAX_OUTPUTS,
) -> GpuProgram:
    """Compile a model for the class `vulkan`.

    *Raises* `UnsupportedError`, naming it, for what the class has no kernel for.
    """
    if kv_type != "f16":
        raise UnsupportedError(
            f"--device {VULKAN_CLASS} has no kernels for a {kv_type} cache; use f16 or --device cpu"
        )
    made = GpuScheduler(
        run_passes(graph, GPU_PASSES), VULKAN_CLASS, spirv.emit, max_rows, max_outputs
    ).run()
    return GpuProgram(
        device_class=VULKAN_CLASS,
        ir_hash=graph.hash(),
        kv_type=kv_type,
        max_rows=max_rows,
        max_outputs=max_outputs,
        launches=(),
        packed=(),
        vectors=tuple(made.vectors.values()),
        caches=made.caches,
        tables=tuple(made.tables),
        outputs=made.outputs,
        arena_bytes=made.arena.top,
        state_bytes=0,
        link=dict,
        shaders=made.shaders,
        dispatches=tuple(made.launches),
        weights=made.weights,
        embeds=made.embeds,
        scratch=made.scratch,
    )
