"""The quantized product as a plan operation: which loop nest, and which rows for whom."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.codegen.kernels.cpu.product import NEST_ARGS, Epilogue
from kinetic.codegen.kernels.cpu.product_few import FEW, few_rows
from kinetic.codegen.kernels.cpu.product_many import many_rows
from kinetic.codegen.kernels.cpu.simd import CpuFunction, Kernel
from kinetic.codegen.targets.llvm_ir import Function, Value
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.quant.base import BlockFormat

MOST_FEW = 2 * FEW
"""Rows up to which memory sets the pace."""
FEW_DRAW = 2
"""Times longer a thread's draw is then: a stream of weights takes a while to get going, while
with many rows a draw's weights pass by the activations."""

Choice = tuple[int | None, str]
"""A loop nest, by name, and the number of rows up to which it is the one to take."""


def choose_nest(name: str, target: CpuTarget, choices: Sequence[Choice]) -> Function:
    """The function `name`, which calls the loop nest that fits the number of rows."""
    k = CpuFunction(name, NEST_ARGS, target)
    arguments = [k.arg[argument] for _, argument in NEST_ARGS]
    done = k.new_label("done")
    for most, nest in choices:
        if most is None:
            k.call_local(nest, "void", *arguments)
            k.branch(done)
            continue
        here, on = k.new_label("here"), k.new_label("on")
        fits = k.arg["rows"].compare("sle", most)
        k.line(f"br i1 {fits.ref}, label %{here}, label %{on}")
        k.label(here)
        k.call_local(nest, "void", *arguments)
        k.branch(done)
        k.label(on)
    k.label(done)
    return k.ret()


def split_rows(k: Kernel, product: str) -> None:
    """Draw chunks of row groups and call the function `product` on each.

    Arguments of the operation: weights, activations, out, bias, blocks of a row (for float
    weights: columns), row groups, address of the row count, groups a chunk, bytes between rows
    of `out`.
    """
    weights, acts, out, bias = (k.argument("ptr") for _ in range(4))
    blocks, groups = k.argument(), k.argument()
    rows = k.load("i64", k.argument("ptr"), align=8)
    chunk, stride = k.argument(), k.argument()
    chunk = k.select(rows.compare("sle", MOST_FEW), chunk * FEW_DRAW, chunk)

    def work(item: Value) -> None:
        first = item * chunk
        last = k.minimum(first + chunk, groups)
        args = (weights, acts, out, bias, blocks, first, last, rows, stride)
        k.call_local(product, "void", *args)

    with k.if_(rows.compare("sgt", 0)):
        k.take((groups + chunk - 1).udiv(chunk), work)


def product_functions(fmt: BlockFormat, target: CpuTarget, epilogue: Epilogue) -> list[Function]:
    """The function `product_<format>` and the loop nests that it chooses from."""
    name = fmt.name.lower() + epilogue.suffix
    nests = [
        few_rows(fmt, target, epilogue, 1),
        few_rows(fmt, target, epilogue, FEW),
        many_rows(fmt, target, epilogue),
    ]
    choices = [(1, f"one_{name}"), (MOST_FEW, f"few_{name}"), (None, f"many_{name}")]
    return [*nests, choose_nest(f"product_{name}", target, choices)]


def matmul(fmt: BlockFormat, target: CpuTarget, epilogue: Epilogue) -> list[Function]:
    """The plan operation `matmul_<format>` and the functions it calls."""
    name = fmt.name.lower() + epilogue.suffix
    k = Kernel(f"matmul_{name}", target)
    split_rows(k, f"product_{name}")
    k.ret()
    return [*product_functions(fmt, target, epilogue), k]
