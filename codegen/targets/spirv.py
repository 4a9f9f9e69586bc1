"""SPIR-V 1.6 for Vulkan 1.3: kernels as binary words, written without a compiler.

What the arithmetic contract needs is said here and nowhere else: every float operation
carries NoContraction, and the entry point declares RoundingModeRTE and
SignedZeroInfNanPreserve for 32-bit floats (Vulkan leaves the rounding of additions and
multiplications open otherwise). `denorm_preserve` adds that mode for drivers that offer it.

*Source*: the SPIR-V 1.6 specification; section 3 for the numbers, 2.4 for the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from enum import IntEnum

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

MAGIC = 0x07230203
VERSION = 0x00010600


class Op(IntEnum):
    """Instructions used here."""

    ExtInstImport = 11
    ExtInst = 12
    MemoryModel = 14
    EntryPoint = 15
    ExecutionMode = 16
    Capability = 17
    TypeVoid = 19
    TypeBool = 20
    TypeInt = 21
    TypeFloat = 22
    TypeVector = 23
    TypeArray = 28
    TypeRuntimeArray = 29
    TypeStruct = 30
    TypePointer = 32
    TypeFunction = 33
    Constant = 43
    Function = 54
    FunctionEnd = 56
    Variable = 59
    Load = 61
    Store = 62
    AccessChain = 65
    Decorate = 71
    MemberDecorate = 72
    CompositeExtract = 81
    ConvertSToF = 111
    ConvertUToF = 112
    UConvert = 113
    Bitcast = 124
    IAdd = 128
    FAdd = 129
    ISub = 130
    FSub = 131
    IMul = 132
    FMul = 133
    UDiv = 134
    UMod = 137
    LogicalOr = 166
    LogicalAnd = 167
    Select = 169
    IEqual = 170
    UGreaterThan = 172
    SGreaterThan = 173
    UGreaterThanEqual = 174
    SGreaterThanEqual = 175
    ULessThan = 176
    SLessThan = 177
    ULessThanEqual = 178
    SLessThanEqual = 179
    FOrdEqual = 180
    FOrdLessThan = 184
    FOrdGreaterThan = 186
    FOrdLessThanEqual = 188
    FOrdGreaterThanEqual = 190
    ShiftRightLogical = 194
    ShiftRightArithmetic = 195
    ShiftLeftLogical = 196
    BitwiseOr = 197
    BitwiseXor = 198
    BitwiseAnd = 199
    ControlBarrier = 224
    LoopMerge = 246
    SelectionMerge = 247
    Label = 248
    Branch = 249
    BranchConditional = 250
    Return = 253
    SDot = 4450


class Capability(IntEnum):
    """Capabilities used here."""

    Shader = 1
    StorageBuffer16BitAccess = 4433
    DenormPreserve = 4464
    SignedZeroInfNanPreserve = 4466
    RoundingModeRTE = 4467
    DotProductInput4x8BitPacked = 6018
    DotProduct = 6019


class Mode(IntEnum):
    """Execution modes used here."""

    LocalSize = 17
    DenormPreserve = 4459
    SignedZeroInfNanPreserve = 4461
    RoundingModeRTE = 4462


class Storage(IntEnum):
    """Storage classes used here."""

    Input = 1
    Workgroup = 4
    Function = 7
    PushConstant = 9
    StorageBuffer = 12


class Decoration(IntEnum):
    """Decorations used here."""

    Block = 2
    ArrayStride = 6
    BuiltIn = 11
    Binding = 33
    DescriptorSet = 34
    Offset = 35
    NoContraction = 42


WORKGROUP_ID = 26
LOCAL_INVOCATION_ID = 27
GLCOMPUTE = 5
UNPACK_HALF_2X16 = 62
"""Number of the widening instruction in `GLSL.std.450`."""
PACKED_4X8 = 0
SCOPE_WORKGROUP = 2
ACQUIRE_RELEASE_WORKGROUP_MEMORY = 0x108

INT_OPS = {
    "add": Op.IAdd,
    "sub": Op.ISub,
    "mul": Op.IMul,
    "udiv": Op.UDiv,
    "urem": Op.UMod,
    "and": Op.BitwiseAnd,
    "or": Op.BitwiseOr,
    "xor": Op.BitwiseXor,
    "shl": Op.ShiftLeftLogical,
    "lshr": Op.ShiftRightLogical,
    "ashr": Op.ShiftRightArithmetic,
}
OPS = {
    F32: {"add": Op.FAdd, "sub": Op.FSub, "mul": Op.FMul},
    U32: INT_OPS,
    I32: INT_OPS,
    BOOL: {"and": Op.LogicalAnd, "or": Op.LogicalOr},
}
COMPARES = {
    F32: {
        "lt": Op.FOrdLessThan,
        "le": Op.FOrdLessThanEqual,
        "gt": Op.FOrdGreaterThan,
        "ge": Op.FOrdGreaterThanEqual,
        "eq": Op.FOrdEqual,
    },
    U32: {
        "lt": Op.ULessThan,
        "le": Op.ULessThanEqual,
        "gt": Op.UGreaterThan,
        "ge": Op.UGreaterThanEqual,
        "eq": Op.IEqual,
    },
    I32: {
        "lt": Op.SLessThan,
        "le": Op.SLessThanEqual,
        "gt": Op.SGreaterThan,
        "ge": Op.SGreaterThanEqual,
        "eq": Op.IEqual,
    },
}


def _string(text: str) -> list[int]:
    """A literal string: UTF-8, a zero byte, padded to words."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def _id(handle: str | int) -> int:
    """Handles are result ids here."""
    return int(handle)


class SpirvBuilder(Builder):
    """Collects the sections of a module; `finish` puts them in the required order."""

    def __init__(self, kernel: Kernel, denorm_preserve: bool = False) -> None:
        super().__init__(kernel)
        self._next_id = 1
        self._capabilities = {
            Capability.Shader,
            Capability.RoundingModeRTE,
            Capability.SignedZeroInfNanPreserve,
        }
        self._modes = [Mode.RoundingModeRTE, Mode.SignedZeroInfNanPreserve]
        if denorm_preserve:
            self._capabilities.add(Capability.DenormPreserve)
            self._modes.append(Mode.DenormPreserve)
        self._decorations: list[list[int]] = []
        self._globals: list[list[int]] = []
        self._locals: list[list[int]] = []
        self._body: list[list[int]] = []
        self._interface: list[int] = []
        self._known: dict[Hashable, int] = {}
        self._glsl = self._new_id()
        self._main = self._new_id()
        self._entry = self._new_id()
        self._push: int | None = None

    # -- the kernel's interface ---------------------------------------------------

    def buffer(self, name: str, type: Type) -> Array:
        if type is Type.U16:
            self._capabilities.add(Capability.StorageBuffer16BitAccess)
        pointer = self._pointer(Storage.StorageBuffer, self._buffer_struct(type))
        variable = self._global(Op.Variable, pointer, Storage.StorageBuffer)
        self._decorate(variable, Decoration.DescriptorSet, 0)
        self._decorate(variable, Decoration.Binding, len(self.buffers))
        self._interface.append(variable)
        self.buffers.append(Slot(name, type))
        return Array(self, name, variable, type, shared=False)

    def param(self, name: str, type: Type) -> Value:
        if self._push is None:
            self._push = self._new_id()
            self._interface.append(self._push)
        index = self.const(U32, len(self.params))
        self.params.append(Slot(name, type))
        member = self._pointer(Storage.PushConstant, self._type(type))
        place = self._emit(Op.AccessChain, member, self._push, _id(index.handle))
        return self._value(Op.Load, type, place)

    def shared(self, type: Type, length: int) -> Array:
        size = _id(self.const(U32, length).handle)
        array = self._declare(("array", type, length), Op.TypeArray, self._type(type), size)
        pointer = self._pointer(Storage.Workgroup, array)
        variable = self._global(Op.Variable, pointer, Storage.Workgroup)
        self._interface.append(variable)
        return Array(self, "shared", variable, type, shared=True)

    def thread(self) -> Value:
        return self._builtin(LOCAL_INVOCATION_ID, 0)

    def group(self, axis: int) -> Value:
        return self._builtin(WORKGROUP_ID, axis)

    # -- control ------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        end = self.as_value(U32, stop)
        index = self.variable(self.as_value(U32, start))
        head, test, body, following, done = (self._new_id() for _ in range(5))
        self._jump(head)
        self._do(Op.LoopMerge, done, following, 0)
        self._jump(test)
        current = index.value
        self._do(Op.BranchConditional, _id((current < end).handle), body, done)
        self._do(Op.Label, body)
        yield current
        self._jump(following)
        index.value = index.value + step
        self._do(Op.Branch, head)
        self._do(Op.Label, done)

    @contextmanager
    def if_(self, condition: Value) -> Iterator[None]:
        then, done = self._new_id(), self._new_id()
        self._do(Op.SelectionMerge, done, 0)
        self._do(Op.BranchConditional, _id(condition.handle), then, done)
        self._do(Op.Label, then)
        yield
        self._jump(done)

    def barrier(self) -> None:
        scope = _id(self.const(U32, SCOPE_WORKGROUP).handle)
        semantics = _id(self.const(U32, ACQUIRE_RELEASE_WORKGROUP_MEMORY).handle)
        self._do(Op.ControlBarrier, scope, scope, semantics)

    def variable(self, initial: Value) -> Variable:
        pointer = self._pointer(Storage.Function, self._type(initial.type))
        handle = self._new_id()
        self._locals.append([Op.Variable, pointer, handle, Storage.Function])
        variable = Variable(self, handle, initial.type)
        variable.value = initial
        return variable

    # -- operations ---------------------------------------------------------------

    def const(self, type: Type, value: Number) -> Value:
        if type is F32:
            word = struct.unpack("<I", struct.pack("<f", value))[0]
        else:
            word = int(value) & 0xFFFFFFFF
        return Value(
            self, self._declare(("const", type, word), Op.Constant, self._type(type), word), type
        )

    def binary(self, op: str, a: Value, b: Value) -> Value:
        result = self._value(OPS[a.type][op], a.type, _id(a.handle), _id(b.handle))
        if a.type is F32:
            self._decorate(_id(result.handle), Decoration.NoContraction)
        return result

    def compare(self, op: str, a: Value, b: Value) -> Value:
        return self._value(COMPARES[a.type][op], BOOL, _id(a.handle), _id(b.handle))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self._value(Op.Select, a.type, _id(condition.handle), _id(a.handle), _id(b.handle))

    def reinterpret(self, a: Value, to: Type) -> Value:
        if self._type(a.type) == self._type(to):
            return Value(self, a.handle, to)
        return self._value(Op.Bitcast, to, _id(a.handle))

    def int_to_float(self, a: Value) -> Value:
        return self._value(Op.ConvertSToF if a.type is I32 else Op.ConvertUToF, F32, _id(a.handle))

    def half_to_float(self, bits: Value) -> Value:
        pair = self._declare(("vec2",), Op.TypeVector, self._type(F32), 2)
        both = self._emit(Op.ExtInst, pair, self._glsl, UNPACK_HALF_2X16, _id(bits.handle))
        return self._value(Op.CompositeExtract, F32, both, 0)

    def dot4(self, a: Value, b: Value, total: Value) -> Value:
        self._capabilities |= {Capability.DotProduct, Capability.DotProductInput4x8BitPacked}
        return self._value(Op.SDot, I32, _id(a.handle), _id(b.handle), PACKED_4X8) + total

    # -- memory -------------------------------------------------------------------

    def load(self, array: Array, index: Value) -> Value:
        place = self._element(array, index)
        if array.type is not Type.U16:
            return self._value(Op.Load, array.type, place)
        narrow = self._emit(Op.Load, self._type(Type.U16), place)
        return self._value(Op.UConvert, U32, narrow)

    def store(self, array: Array, index: Value, value: Value) -> None:
        stored = _id(value.handle)
        if array.type is Type.U16:
            stored = self._emit(Op.UConvert, self._type(Type.U16), stored)
        self._do(Op.Store, self._element(array, index), stored)

    def read_variable(self, variable: Variable) -> Value:
        return self._value(Op.Load, variable.type, _id(variable.handle))

    def write_variable(self, variable: Variable, value: Value) -> None:
        self._do(Op.Store, _id(variable.handle), _id(value.handle))

    # -- the module ---------------------------------------------------------------

    def finish(self) -> bytes:
        void = self._declare(("void",), Op.TypeVoid)
        function = self._declare(("function",), Op.TypeFunction, void)
        self._push_constants()
        header: list[list[int]] = [[Op.Capability, c] for c in sorted(self._capabilities)]
        header += [
            [Op.ExtInstImport, self._glsl, *_string("GLSL.std.450")],
            [Op.MemoryModel, 0, 1],
            [Op.EntryPoint, GLCOMPUTE, self._main, *_string("main"), *self._interface],
            [Op.ExecutionMode, self._main, Mode.LocalSize, self.kernel.workgroup, 1, 1],
        ]
        header += [[Op.ExecutionMode, self._main, mode, 32] for mode in self._modes]
        code: list[list[int]] = [
            [Op.Function, void, self._main, 0, function],
            [Op.Label, self._entry],
            *self._locals,
            *self._body,
            [Op.Return],
            [Op.FunctionEnd],
        ]
        words = [MAGIC, VERSION, 0, self._next_id, 0]
        for line in header + self._decorations + self._globals + code:
            words += [len(line) << 16 | line[0], *line[1:]]
        return struct.pack(f"<{len(words)}I", *words)

    def _push_constants(self) -> None:
        """Declare the block of parameters; its members are all known only at the end."""
        if self._push is None:
            return
        members = [self._type(slot.type) for slot in self.params]
        block = self._declare(("push",), Op.TypeStruct, *members)
        pointer = self._pointer(Storage.PushConstant, block)
        self._globals.append([Op.Variable, pointer, self._push, Storage.PushConstant])
        self._decorate(block, Decoration.Block)
        for index in range(len(members)):
            offset = [Op.MemberDecorate, block, index, Decoration.Offset, 4 * index]
            self._decorations.append(offset)

    # -- words --------------------------------------------------------------------

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _do(self, op: Op, *words: int) -> None:
        self._body.append([op, *words])

    def _emit(self, op: Op, result_type: int, *words: int) -> int:
        result = self._new_id()
        self._do(op, result_type, result, *words)
        return result

    def _value(self, op: Op, type: Type, *words: int) -> Value:
        return Value(self, self._emit(op, self._type(type), *words), type)

    def _jump(self, label: int) -> None:
        """Leave a block and start the next one."""
        self._do(Op.Branch, label)
        self._do(Op.Label, label)

    def _decorate(self, target: int, decoration: Decoration, *words: int) -> None:
        self._decorations.append([Op.Decorate, target, decoration, *words])

    def _global(self, op: Op, result_type: int, *words: int) -> int:
        result = self._new_id()
        self._globals.append([op, result_type, result, *words])
        return result

    def _declare(self, key: Hashable, op: Op, *words: int) -> int:
        """A type or constant, declared once however often it is asked for."""
        if key not in self._known:
            result = self._known[key] = self._new_id()
            first = [words[0], result, *words[1:]] if op is Op.Constant else [result, *words]
            self._globals.append([op, *first])
        return self._known[key]

    @staticmethod
    def _type_name(type: Type) -> tuple[str, ...]:
        # One integer type serves both signednesses: SPIR-V's is a hint, its operations decide.
        return ("type", "u32" if type is I32 else type.value)

    def _type(self, type: Type) -> int:
        name = self._type_name(type)
        if type is BOOL:
            return self._declare(name, Op.TypeBool)
        if type is F32:
            return self._declare(name, Op.TypeFloat, 32)
        return self._declare(name, Op.TypeInt, 8 * type.nbytes, 0)

    def _pointer(self, storage: Storage, pointee: int) -> int:
        return self._declare(("pointer", storage, pointee), Op.TypePointer, storage, pointee)

    def _buffer_struct(self, type: Type) -> int:
        """The block that holds a buffer: one array of as many elements as are bound."""
        key = ("block", self._type_name(type))
        if key in self._known:
            return self._known[key]
        array = self._declare(("elements", key), Op.TypeRuntimeArray, self._type(type))
        block = self._declare(key, Op.TypeStruct, array)
        self._decorate(array, Decoration.ArrayStride, type.nbytes)
        self._decorate(block, Decoration.Block)
        self._decorations.append([Op.MemberDecorate, block, 0, Decoration.Offset, 0])
        return block

    def _element(self, array: Array, index: Value) -> int:
        """Pointer to an element."""
        storage = Storage.Workgroup if array.shared else Storage.StorageBuffer
        pointer = self._pointer(storage, self._type(array.type))
        path = [] if array.shared else [_id(self.const(U32, 0).handle)]
        return self._emit(Op.AccessChain, pointer, _id(array.handle), *path, _id(index.handle))

    def _builtin(self, number: int, axis: int) -> Value:
        vector = self._declare(("vec3",), Op.TypeVector, self._type(U32), 3)
        key = ("builtin", number)
        if key not in self._known:
            pointer = self._pointer(Storage.Input, vector)
            self._known[key] = self._global(Op.Variable, pointer, Storage.Input)
            self._decorate(self._known[key], Decoration.BuiltIn, number)
            self._interface.append(self._known[key])
        loaded = self._emit(Op.Load, vector, self._known[key])
        return self._value(Op.CompositeExtract, U32, loaded, axis)


def emit(kernel: Kernel, denorm_preserve: bool = False) -> GpuCode:
    """A kernel as a SPIR-V module whose entry point is `main`.

    Buffer `i` is binding `i` of set 0; parameter `i` lies at byte `4 * i` of the push constants.
    """
    return SpirvBuilder(kernel, denorm_preserve).build()
