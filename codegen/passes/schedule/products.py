"""Matrix products, with bias and residual."""

from __future__ import annotations

from kinetic.codegen.kernels.cpu.matmul import matmul
from kinetic.codegen.kernels.cpu.matmul_float import matmul_float
from kinetic.codegen.kernels.cpu.product import Epilogue
from kinetic.codegen.passes.schedule.core import (
    Scheduler,
    dense_width,
    emits,
    int_arg,
    row_bytes,
    weight_format,
)
from kinetic.ir.cpu_abi import ROWS
from kinetic.ir.graph import Node
from kinetic.ir.program import Arg, ArgKind
from kinetic.ir.quant.base import BlockFormat, FloatFormat
from kinetic.ir.types import WeightType


@emits("matmul")
def _matmul(s: Scheduler, node: Node, index: int) -> None:
    x, weight = node.arg("x"), node.arg("W")
    bias, residual = node.maybe("bias"), node.maybe("residual")
    fmt, target = weight_format(weight), s.target
    epilogue = Epilogue(bias is not None, residual is not None)
    assert isinstance(weight.type, WeightType)
    rows, columns = weight.type.shape
    if isinstance(fmt, BlockFormat):
        kernel = s.need(
            f"matmul_{fmt.name.lower()}{epilogue.suffix}",
            lambda: matmul(fmt, target, epilogue),
        )
        inner = columns // fmt.block
    else:
        dense_width(x, "a product's input")
        assert isinstance(fmt, FloatFormat)
        kernel = s.need(
            f"matmul_{fmt.name.lower()}{epilogue.suffix}",
            lambda: matmul_float(fmt, target, epilogue),
        )
        inner = columns
    groups = -(-rows // ROWS)
    matrix, bias_arg = s.matrix(weight), s.vector(bias)
    reads = [s.region(x)]
    s.order_reads(reads)
    if residual is None:
        s.allocate(node)
    else:
        s.take_over(node, residual, index, [x])
    s.launch(
        kernel,
        [
            matrix,
            s.buffer(x),
            s.buffer(node),
            bias_arg,
            int_arg(inner),
            int_arg(groups),
            s.count(node),
            Arg(ArgKind.CHUNK, groups),
            int_arg(row_bytes(node)),
        ],
        node,
        reads,
        [s.region(node)],
    )
