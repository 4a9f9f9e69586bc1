"""The product of an F32, F16 or BF16 matrix with f32 rows (docs/arithmetic.md section 5).

Weights lie `[row group][k][8 rows]`: one vector is eight outputs' weight for one input.
Four chains over `k`; a few tokens at a time share each widened weight.
"""

from __future__ import annotations

from kinetic.codegen.kernels.cpu.matmul import choose_nest, split_rows
from kinetic.codegen.kernels.cpu.product import CHAINS, NEST_ARGS, Epilogue
from kinetic.codegen.kernels.cpu.simd import F32, CpuFunction, Kernel, load_bf16, load_f16, tree
from kinetic.codegen.targets.llvm_ir import Function, Value
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import ROWS
from kinetic.ir.quant.base import FloatFormat


class _FloatNest:
    """The loop nest for `tokens` rows at a time."""

    def __init__(self, name: str, fmt: FloatFormat, target: CpuTarget, epilogue: Epilogue):
        self.k = CpuFunction(name, NEST_ARGS, target)
        self.fmt, self.epilogue = fmt, epilogue

    def weight(self, base: Value, column: Value) -> Value:
        """Eight rows' weight of one input, widened."""
        at = column * (ROWS * self.fmt.nbytes)
        if self.fmt.name == "F32":
            return self.k.load(F32, base, at)
        return (load_f16 if self.fmt.name == "F16" else load_bf16)(self.k, base, at)

    def tile(self, group: Value, base: Value, token: Value, tokens: int) -> None:
        """`tokens` rows from `token` on against one row group."""
        k, arg = self.k, self.k.arg
        row_bytes = arg["blocks"] << 2
        rows = [k.gep(arg["acts"], (token + t) * row_bytes) for t in range(tokens)]
        zeros = [k.zero(F32)] * (CHAINS * tokens)
        with k.loop(0, arg["blocks"], CHAINS, carry=zeros) as i:
            chains = list(i.carried)
            for c in range(CHAINS):
                w = self.weight(base, i.index + c)
                for t, row in enumerate(rows):
                    x = k.load_splat("float", 8, row, (i.index + c) << 2)
                    chains[CHAINS * t + c] = chains[CHAINS * t + c] + w * x
            i.next = chains
        for t in range(tokens):
            total = tree(i.results[CHAINS * t : CHAINS * (t + 1)])
            column = group << 5
            if self.epilogue.bias:
                total = total + k.load(F32, arg["bias"], column)
            address = k.gep(arg["out"], (token + t) * arg["stride"] + column)
            if self.epilogue.residual:
                total = k.load(F32, address) + total
            k.store(total, address)

    def emit(self, tokens: int) -> CpuFunction:
        """The whole function, `tokens` rows at a time and the rest one by one."""
        k, arg = self.k, self.k.arg
        group_bytes = arg["blocks"] * (ROWS * self.fmt.nbytes)
        with k.loop(arg["first"], arg["last"]) as group:
            base = k.gep(arg["weights"], group.index * group_bytes)
            whole = arg["rows"].udiv(tokens) * tokens
            if tokens > 1:
                with k.loop(0, whole, tokens) as t:
                    self.tile(group.index, base, t.index, tokens)
            with k.loop(whole if tokens > 1 else 0, arg["rows"]) as t:
                self.tile(group.index, base, t.index, 1)
        return k.ret()


def float_product_functions(
    fmt: FloatFormat, target: CpuTarget, epilogue: Epilogue
) -> list[Function]:
    """The function `product_<format>` and the loop nests that it chooses from."""
    name = fmt.name.lower() + epilogue.suffix
    tokens = (target.registers - 4) // CHAINS
    one = _FloatNest(f"one_{name}", fmt, target, epilogue).emit(1)
    many = _FloatNest(f"many_{name}", fmt, target, epilogue).emit(tokens)
    return [one, many, choose_nest(f"product_{name}", target, [(1, one.name), (None, many.name)])]


def matmul_float(fmt: FloatFormat, target: CpuTarget, epilogue: Epilogue) -> list[Function]:
    """The plan operation `matmul_<format>` and the functions it calls."""
    name = fmt.name.lower() + epilogue.suffix
    k = Kernel(f"matmul_{name}", target)
    split_rows(k, f"product_{name}")
    k.ret()
    return [*float_product_functions(fmt, target, epilogue), k]
