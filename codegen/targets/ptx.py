"""PTX for NVIDIA GPUs: kernels as LLVM IR, assembled by LLVM's NVPTX back end.

LLVM prints `add.rn.f32` and `mul.rn.f32` for plain `fadd` and `fmul`, which `ptxas` may
not fuse; no fast-math flag is ever written. `emit` returns PTX text, `emit_llvm` the IR.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import llvmlite.binding as llvm

from kinetic.codegen.kernels.builder import (
    BOOL,
    F32,
    I32,
    U32,
    Array,
    Builder,
    GpuCode,
    Kernel,
    Number,
    Slot,
    Type,
    Value,
    Variable,
)

TRIPLE = "nvptx64-nvidia-cuda"
CHIP = "sm_75"
"""Oldest chip of the class: Turing, the first with integer tensor units."""

LLVM_TYPES = {
    Type.BOOL: "i1",
    Type.U16: "i16",
    Type.U32: "i32",
    Type.I32: "i32",
    Type.F32: "float",
}
COMPARES = {
    F32: {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq"},
    U32: {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge", "eq": "eq"},
    I32: {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq"},
}
GLOBAL, SHARED = 1, 3
"""LLVM address spaces of the NVPTX back end."""


def _float(value: float) -> str:
    """A binary32 constant as LLVM spells it: the bits of the binary64 of equal value."""
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


class PtxBuilder(Builder):
    """Prints one LLVM function. Locals are allocas, which LLVM turns into registers."""

    def __init__(self, kernel: Kernel, chip: str = CHIP) -> None:
        super().__init__(kernel)
        self._chip = chip
        self._names = 0
        self._body: list[str] = []
        self._locals: list[str] = []
        self._globals: list[str] = []
        self._declared: set[str] = set()

    # -- the kernel's interface ---------------------------------------------------

    def buffer(self, name: str, type: Type) -> Array:
        self.buffers.append(Slot(name, type))
        return Array(self, name, f"%{name}", type, shared=False)

    def param(self, name: str, type: Type) -> Value:
        self.params.append(Slot(name, type))
        return Value(self, f"%{name}", type)

    def shared(self, type: Type, length: int) -> Array:
        name = f"@{self.kernel.name}.shared{len(self._globals)}"
        memory = f"[{length} x {LLVM_TYPES[type]}]"
        self._globals.append(
            f"{name} = internal addrspace({SHARED}) global {memory} undef, align 16"
        )
        return Array(self, "shared", name, type, shared=True)

    def thread(self) -> Value:
        return self._intrinsic("llvm.nvvm.read.ptx.sreg.tid.x", U32)

    def group(self, axis: int) -> Value:
        return self._intrinsic(f"llvm.nvvm.read.ptx.sreg.ctaid.{'xyz'[axis]}", U32)

    # -- control ------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        end = self.as_value(U32, stop)
        index = self.variable(self.as_value(U32, start))
        head, body, done = self._name("head"), self._name("body"), self._name("done")
        self._jump(head)
        current = index.value
        self._do(f"br i1 {(current < end).handle}, label %{body}, label %{done}")
        self._body.append(f"{body}:")
        yield current
        index.value = index.value + step
        self._do(f"br label %{head}")
        self._body.append(f"{done}:")

    @contextmanager
    def if_(self, condition: Value) -> Iterator[None]:
        then, done = self._name("then"), self._name("done")
        self._do(f"br i1 {condition.handle}, label %{then}, label %{done}")
        self._body.append(f"{then}:")
        yield
        self._jump(done)

    def barrier(self) -> None:
        name = "llvm.nvvm.barrier.cta.sync.aligned.all"
        self._declared.add(f"declare void @{name}(i32) convergent")
        self._do(f"call void @{name}(i32 0)")

    def variable(self, initial: Value) -> Variable:
        handle = f"%{self._name('local')}"
        self._locals.append(f"  {handle} = alloca {LLVM_TYPES[initial.type]}")
        variable = Variable(self, handle, initial.type)
        variable.value = initial
        return variable

    # -- operations ---------------------------------------------------------------

    def const(self, type: Type, value: Number) -> Value:
        text = _float(value) if type is F32 else str(int(value) & 0xFFFFFFFF)
        return Value(self, text, type)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        name = f"f{op}" if a.type is F32 else op
        return self._value(a.type, f"{name} {LLVM_TYPES[a.type]} {a.handle}, {b.handle}")

    def compare(self, op: str, a: Value, b: Value) -> Value:
        kind = "fcmp" if a.type is F32 else "icmp"
        text = f"{COMPARES[a.type][op]} {LLVM_TYPES[a.type]} {a.handle}, {b.handle}"
        return self._value(BOOL, f"{kind} {text}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        type = LLVM_TYPES[a.type]
        return self._value(
            a.type, f"select i1 {condition.handle}, {type} {a.handle}, {type} {b.handle}"
        )

    def reinterpret(self, a: Value, to: Type) -> Value:
        return self._value(to, f"bitcast {LLVM_TYPES[a.type]} {a.handle} to {LLVM_TYPES[to]}")

    def int_to_float(self, a: Value) -> Value:
        return self._value(F32, f"{'si' if a.type is I32 else 'ui'}tofp i32 {a.handle} to float")

    def half_to_float(self, bits: Value) -> Value:
        narrow = self._emit(f"trunc i32 {bits.handle} to i16")
        half = self._emit(f"bitcast i16 {narrow} to half")
        return self._value(F32, f"fpext half {half} to float")

    def dot4(self, a: Value, b: Value, total: Value) -> Value:
        return self._intrinsic("llvm.nvvm.idp4a.s.s", I32, a, b, total)

    # -- memory -------------------------------------------------------------------

    def load(self, array: Array, index: Value) -> Value:
        type = LLVM_TYPES[array.type]
        place = self._element(array, index)
        loaded = self._emit(f"load {type}, {place}, align {array.type.nbytes}")
        if array.type is not Type.U16:
            return Value(self, loaded, array.type)
        return self._value(U32, f"zext i16 {loaded} to i32")

    def store(self, array: Array, index: Value, value: Value) -> None:
        stored = str(value.handle)
        if array.type is Type.U16:
            stored = self._emit(f"trunc i32 {stored} to i16")
        type = LLVM_TYPES[array.type]
        place = self._element(array, index)
        self._do(f"store {type} {stored}, {place}, align {array.type.nbytes}")

    def read_variable(self, variable: Variable) -> Value:
        type = LLVM_TYPES[variable.type]
        return self._value(variable.type, f"load {type}, ptr {variable.handle}")

    def write_variable(self, variable: Variable, value: Value) -> None:
        self._do(f"store {LLVM_TYPES[value.type]} {value.handle}, ptr {variable.handle}")

    # -- the module ---------------------------------------------------------------

    def llvm_ir(self) -> str:
        """The LLVM module built so far."""
        arguments = [
            f"ptr addrspace({GLOBAL}) noalias align 16 %{slot.name}" for slot in self.buffers
        ]
        arguments += [f"{LLVM_TYPES[slot.type]} %{slot.name}" for slot in self.params]
        lines = [
            f'target triple = "{TRIPLE}"',
            *self._globals,
            *sorted(self._declared),
            f"define ptx_kernel void @{self.kernel.name}({', '.join(arguments)}) #0 {{",
            "entry:",
            *self._locals,
            *self._body,
            "  ret void",
            "}",
            f'attributes #0 = {{ "nvvm.reqntid"="{self.kernel.workgroup}" }}',
        ]
        return "\n".join(lines) + "\n"

    def finish(self) -> bytes:
        return assemble(self.llvm_ir(), self._chip).encode()

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _do(self, line: str) -> None:
        self._body.append(f"  {line}")

    def _emit(self, instruction: str) -> str:
        result = f"%{self._name('v')}"
        self._do(f"{result} = {instruction}")
        return result

    def _value(self, type: Type, instruction: str) -> Value:
        return Value(self, self._emit(instruction), type)

    def _jump(self, label: str) -> None:
        """Leave a block and start the next one."""
        self._do(f"br label %{label}")
        self._body.append(f"{label}:")

    def _intrinsic(self, name: str, result: Type, *arguments: Value) -> Value:
        types = ", ".join(LLVM_TYPES[a.type] for a in arguments)
        self._declared.add(f"declare {LLVM_TYPES[result]} @{name}({types})")
        given = ", ".join(f"{LLVM_TYPES[a.type]} {a.handle}" for a in arguments)
        return self._value(result, f"call {LLVM_TYPES[result]} @{name}({given})")

    def _element(self, array: Array, index: Value) -> str:
        """Typed pointer to an element, as an operand; 64-bit, so that no buffer is too long."""
        space = SHARED if array.shared else GLOBAL
        wide = self._emit(f"zext i32 {index.handle} to i64")
        pointer = self._emit(
            f"getelementptr inbounds {LLVM_TYPES[array.type]}, "
            f"ptr addrspace({space}) {array.handle}, i64 {wide}"
        )
        return f"ptr addrspace({space}) {pointer}"


@cache
def _machine(chip: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Features stay empty: LLVM picks the PTX version that knows the chip.
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=chip, opt=3)


def assemble(ir: str, chip: str = CHIP) -> str:
    """PTX for a module of LLVM IR."""
    machine = _machine(chip)
    module = llvm.parse_assembly(ir)
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return str(machine.emit_assembly(module))


def emit_llvm(kernel: Kernel) -> str:
    """A kernel as LLVM IR, before any pass."""
    builder = PtxBuilder(kernel)
    kernel.body(builder)
    return builder.llvm_ir()


def emit(kernel: Kernel, chip: str = CHIP) -> GpuCode:
    """A kernel as PTX text; its arguments are the buffers' addresses, then the parameters."""
    return PtxBuilder(kernel, chip).build()
