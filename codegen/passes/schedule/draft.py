"""What blocks that predict further tokens read: the vectors given with rows, joined rows."""

from __future__ import annotations

from kinetic.codegen.kernels.cpu import draft as kernels
from kinetic.codegen.passes.schedule.core import STEP, Scheduler, dense_width, emits, int_arg
from kinetic.ir.graph import Node


@emits("hidden")
def _hidden(s: Scheduler, node: Node, index: int) -> None:
    kernel = s.need("hidden", lambda: [kernels.hidden(s.target)])
    width = int_arg(dense_width(node, "the vectors given with the rows"))
    s.simple(node, index, kernel, lambda: [s.buffer(node), width, STEP])


@emits("concat")
def _concat(s: Scheduler, node: Node, index: int) -> None:
    kernel = s.need("concat", lambda: [kernels.concat(s.target)])
    parts = [node.arg("a"), node.arg("b")]
    widths = [int_arg(dense_width(part, "a part of a row")) for part in parts]
    s.simple(
        node,
        index,
        kernel,
        lambda: [*(s.buffer(p) for p in parts), s.buffer(node), *widths, s.count(node)],
    )
