"""Interprets the PTX that LLVM prints for our kernels, checking what hardware would not.

All threads of a grid advance together as numpy arrays; where they part, the group that
stands lowest in the code goes first. A launch fails on: an access outside every buffer or
not aligned, a read of shared memory that nobody wrote, a race in shared memory between
two barriers, threads of a workgroup at different barriers, two threads that store to one
global address at once, and any instruction not listed here. Float instructions that the
arithmetic contract forbids (`fma`, `div`, `sqrt`, ...) are left out on purpose.

*Source*: NVIDIA's PTX ISA manual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from support.gpu_arguments import Number

from kinetic.codegen.kernels.builder import F32, GpuCode, Kernel
from kinetic.codegen.targets import ptx

Lanes = slice | np.ndarray
"""Threads that take part: all of them, or their indices."""

TYPES: dict[str, type[np.generic]] = {
    "pred": np.bool_,
    "b8": np.uint8,
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "f16": np.float16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
}
WIDER = {np.uint16: np.uint32, np.int16: np.int32, np.uint32: np.uint64, np.int32: np.int64}
NOBODY, SEVERAL = -1, -2
"""Marks in the record of who touched a word of shared memory."""
GUARD = 256
"""Bytes that belong to nobody between two buffers."""


class PtxFault(Exception):
    """A kernel did something that hardware might let pass."""


def _unsigned(dtype: type[np.generic]) -> type[np.generic]:
    """The bits type of a type's width."""
    return TYPES[f"b{8 * dtype().itemsize}"]


# -- the program ------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """`@!%p1 op.a.b x, y;`, taken apart."""

    text: str
    guard: str | None
    negated: bool
    op: tuple[str, ...]
    args: tuple[str, ...]


@dataclass
class Program:
    """Parsed PTX of one kernel."""

    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    params: list[str] = field(default_factory=list)
    registers: dict[str, type[np.generic]] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0


_LINE = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);")
_SCRATCH = re.compile(r"\{ \.reg \.b16 tmp; (mov\.b32 \{.*\}, \S+;) \}")
"""How LLVM takes one half of a register: with a scratch register for the other half."""
_ARGUMENT = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


def parse(text: str) -> Program:
    """The kernel in a PTX module that has one.

    *Raises*: `PtxFault` for a line that it does not understand.
    """
    program = Program()
    program.params = re.findall(r"\.param\s[^\n]*?(\w+_param_\d+)", text.split("\n{")[0])
    for align, name, size in re.findall(r"\.shared \.align (\d+) \.b8 ([\w$]+)\[(\d+)\]", text):
        start = -(-program.shared_bytes // int(align)) * int(align)
        program.shared[name] = start
        program.shared_bytes = start + int(size)
    for kind, prefix, count in re.findall(r"\.reg \.(\w+)\s+(%\w+)<(\d+)>", text):
        dtype = TYPES[kind]
        stored = np.bool_ if dtype is np.bool_ else _unsigned(dtype)
        program.registers.update({f"{prefix}{i}": stored for i in range(int(count))})
    body = text[text.index("\n{") + 2 : text.rindex("}")]
    for raw in body.split("\n"):
        line = raw.split("//")[0].strip()
        if not line or line.startswith("."):
            continue
        if line.endswith(":"):
            program.labels[line[:-1]] = len(program.code)
            continue
        scratch = _SCRATCH.fullmatch(line)
        match = _LINE.fullmatch(scratch[1] if scratch else line)
        if match is None:
            raise PtxFault(f"not understood: {line}")
        negated, guard, op, args = match.groups()
        program.code.append(
            Instruction(
                line, guard, negated == "!", tuple(op.split(".")), tuple(_ARGUMENT.findall(args))
            )
        )
    return program


# -- memory -----------------------------------------------------------------------


class GlobalMemory:
    """The buffers of a launch in one address space, each between guards."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.addresses: list[int] = []
        end = GUARD
        for array in arrays:
            self.addresses.append(end)
            end = -(-(end + array.nbytes + GUARD) // GUARD) * GUARD
        self.data = np.zeros(end, np.uint8)
        self.owned = np.zeros(end, np.bool_)
        for address, array in zip(self.addresses, arrays, strict=True):
            self.data[address : address + array.nbytes] = array.reshape(-1).view(np.uint8)
            self.owned[address : address + array.nbytes] = True

    def check(self, address: np.ndarray, width: int, where: Instruction) -> None:
        """Refuse addresses that are not wholly inside one buffer."""
        inside = (address >= 0) & (address + width <= len(self.data))
        if not inside.all() or not (self.owned[address] & self.owned[address + width - 1]).all():
            raise PtxFault(f"outside every buffer: {where.text}")

    def load(self, address: np.ndarray, width: int, where: Instruction) -> np.ndarray:
        """Words at these addresses."""
        self.check(address, width, where)
        return self.data.view(TYPES[f"b{8 * width}"])[address // width]

    def store(self, address: np.ndarray, values: np.ndarray, where: Instruction) -> None:
        """Write words; no two threads may write one."""
        width = values.dtype.itemsize
        self.check(address, width, where)
        if len(np.unique(address)) != len(address):
            raise PtxFault(f"two threads store to one address: {where.text}")
        self.data.view(values.dtype)[address // width] = values


class SharedMemory:
    """Shared memory of all workgroups, in 4-byte words, with a record of who touched what.

    An epoch of a workgroup lasts from one barrier to the next.
    """

    def __init__(self, groups: int, size: int) -> None:
        self.words = -(-size // 4)
        total = max(1, groups * self.words)
        self.data = np.zeros(total, np.uint32)
        self.writer = np.full(total, NOBODY, np.int64)
        self.write_epoch = np.full(total, NOBODY, np.int64)
        self.reader = np.full(total, NOBODY, np.int64)
        self.read_epoch = np.full(total, NOBODY, np.int64)
        self.epoch = np.zeros(groups, np.int64)

    def _word(self, address: np.ndarray, group: np.ndarray, where: Instruction) -> np.ndarray:
        if not ((address >= 0) & (address + 4 <= 4 * self.words)).all():
            raise PtxFault(f"outside shared memory: {where.text}")
        return group * self.words + address // 4

    def load(
        self, address: np.ndarray, thread: np.ndarray, group: np.ndarray, where: Instruction
    ) -> np.ndarray:
        """Words at these addresses."""
        word, epoch = self._word(address, group, where), self.epoch[group]
        if (self.writer[word] == NOBODY).any():
            raise PtxFault(f"nobody wrote what is read: {where.text}")
        if ((self.writer[word] != thread) & (self.write_epoch[word] == epoch)).any():
            raise PtxFault(f"read without a barrier after another's write: {where.text}")
        alone = (self.read_epoch[word] != epoch) | (self.reader[word] == thread)
        self.reader[word] = np.where(alone, thread, SEVERAL)
        # Of threads that read one word together, numpy kept the last: the others see it here.
        self.reader[word[self.reader[word] != thread]] = SEVERAL
        self.read_epoch[word] = epoch
        return self.data[word]

    def store(
        self,
        address: np.ndarray,
        values: np.ndarray,
        thread: np.ndarray,
        group: np.ndarray,
        where: Instruction,
    ) -> None:
        """Write words; nobody else may have touched them in this epoch."""
        word, epoch = self._word(address, group, where), self.epoch[group]
        if len(np.unique(word)) != len(word):
            raise PtxFault(f"two threads store to one word: {where.text}")
        if ((self.writer[word] != thread) & (self.write_epoch[word] == epoch)).any():
            raise PtxFault(f"write without a barrier after another's write: {where.text}")
        if ((self.reader[word] != thread) & (self.read_epoch[word] == epoch)).any():
            raise PtxFault(f"write without a barrier after another's read: {where.text}")
        self.writer[word], self.write_epoch[word] = thread, epoch
        self.data[word] = values


# -- instructions -----------------------------------------------------------------

SIMPLE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "copysign": lambda sign, magnitude: np.copysign(magnitude, sign),
    "mov": lambda a: a,
}
"""Instructions whose operands and result all have the type of their last suffix."""

COMPARES: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}
"""Compares; those that end in `u` hold for NaN too."""

CONTROL = {"bra", "bar", "ret"}


def _shift(op: str, value: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Shifts clamp their count: by the width or more, only the sign is left."""
    width = 8 * value.dtype.itemsize
    count = np.minimum(by, width - 1).astype(value.dtype)
    shifted = value << count if op == "shl" else value >> count
    keeps_sign = op == "shr" and value.dtype.kind == "i"
    return shifted if keeps_sign else np.where(by >= width, value.dtype.type(0), shifted)


def _extremum(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`min.f32`, `max.f32`: a NaN loses to a number, and -0 lies below +0.

    The contract's `max` is a select; LLVM writes `max` where one side is a constant for
    which the two agree.
    """
    chosen = (np.fmax if name == "max" else np.fmin)(a, b)
    merge = np.bitwise_and if name == "max" else np.bitwise_or
    return np.where(a == b, merge(a.view(np.uint32), b.view(np.uint32)).view(np.float32), chosen)


def _multiply(how: tuple[str, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`mul.rn`, `mul.lo`, `mul.hi` and `mul.wide`."""
    if "wide" not in how and "hi" not in how:
        return a * b
    wide = WIDER[a.dtype.type]
    product = a.astype(wide) * b.astype(wide)
    if "wide" in how:
        return product
    return (product >> wide(8 * a.dtype.itemsize)).astype(a.dtype)


def _extract(value: np.ndarray, position: np.ndarray, length: np.ndarray) -> np.ndarray:
    """`bfe`: a field of bits, sign-extended for signed types."""
    if (position + length > 32).any() or (length == 0).any():
        raise PtxFault("a bit field that is empty or leaves the word")
    kind = value.dtype.type
    return (value << (32 - position - length).astype(kind)) >> (32 - length).astype(kind)


def _permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """`prmt`: four bytes chosen from eight, or their sign."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros(np.broadcast(both, selector).shape, np.uint32)
    for place in range(4):
        choice = (selector >> np.uint32(4 * place)) & np.uint32(15)
        byte = (both >> (8 * (choice & 7)).astype(np.uint64)).astype(np.uint32) & np.uint32(255)
        sign = np.where(byte & 128, np.uint32(255), np.uint32(0))
        result |= np.where(choice & 8, sign, byte).astype(np.uint32) << np.uint32(8 * place)
    return result


def _dot4(op: tuple[str, ...], a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """`dp4a`: four products of bytes, added to a word."""
    result = total.astype(np.int32)
    kinds = [np.int8 if name == "s32" else np.uint8 for name in op[1:3]]
    for place in range(4):
        x, y = (
            (word.view(np.uint32) >> np.uint32(8 * place)).astype(np.uint8).view(kind)
            for word, kind in zip((a, b), kinds, strict=True)
        )
        result = result + x.astype(np.int32) * y.astype(np.int32)
    return result


def _convert(op: tuple[str, ...], value: np.ndarray) -> np.ndarray:
    """`cvt` that keeps the contract: between integers, and towards floats."""
    to = TYPES[op[-2]]
    if value.dtype.kind == "f" and to().dtype.kind != "f":
        raise PtxFault("floats become integers by the contract's addition, not by cvt")
    if value.dtype.kind != "f" and to().dtype.kind == "f" and "rn" not in op:
        raise PtxFault("a conversion to float has to round to nearest even")
    return value.astype(to)


# -- a launch ---------------------------------------------------------------------


class _Launch:
    """State of all threads of one launch."""

    def __init__(
        self,
        program: Program,
        grid: tuple[int, int, int],
        workgroup: int,
        memory: GlobalMemory,
        params: list[np.generic],
    ) -> None:
        x, y, z = grid
        groups = x * y * z
        self.program = program
        self.workgroup = workgroup
        self.memory = memory
        self.params = dict(zip(program.params, params, strict=True))
        self.threads = groups * workgroup
        self.thread = np.arange(self.threads)
        self.group = self.thread // workgroup
        self.shared = SharedMemory(groups, program.shared_bytes)
        self.special = {
            "%tid.x": (self.thread % workgroup).astype(np.uint32),
            "%ctaid.x": (self.group % x).astype(np.uint32),
            "%ctaid.y": (self.group // x % y).astype(np.uint32),
            "%ctaid.z": (self.group // (x * y)).astype(np.uint32),
        }
        self.registers = {
            name: np.zeros(self.threads, dtype) for name, dtype in program.registers.items()
        }
        self.joins = set(program.labels.values())
        self.at = np.zeros(self.threads, np.int64)
        self.waiting = np.zeros(self.threads, np.bool_)

    def run(self) -> None:
        end = len(self.program.code)
        with np.errstate(all="ignore"):
            while True:
                ready = (self.at < end) & ~self.waiting
                if ready.any():
                    first = int(self.at[ready].min())
                    here = ready & (self.at == first)
                    self._advance(slice(None) if here.all() else np.nonzero(here)[0], first)
                elif self.waiting.any():
                    self._release()
                else:
                    return

    def _release(self) -> None:
        """Let every workgroup pass its barrier, if all of it stands at the same one."""
        waiting = self.waiting.reshape(-1, self.workgroup)
        at = self.at.reshape(-1, self.workgroup)
        if not (waiting.all(1) | ~waiting.any(1)).all():
            raise PtxFault("a thread waits at a barrier that another never reaches")
        if not ((at == at[:, :1]) | ~waiting).all():
            raise PtxFault("threads of a workgroup wait at different barriers")
        self.shared.epoch[waiting.any(1)] += 1
        self.at[self.waiting] += 1
        self.waiting[:] = False

    def _advance(self, lanes: Lanes, at: int) -> None:
        """Run a group of threads up to a branch, barrier, end or label."""
        while True:
            instruction = self.program.code[at]
            if instruction.op[0] in CONTROL:
                self._control(instruction, lanes, at)
                return
            acting = self._acting(instruction, lanes)
            if isinstance(acting, slice) or len(acting):
                self._execute(instruction, acting)
            at += 1
            if at in self.joins:
                self.at[lanes] = at
                return

    def _taken(self, instruction: Instruction, lanes: Lanes) -> np.ndarray:
        if instruction.guard is None:
            return np.ones(self.thread[lanes].shape, np.bool_)
        return self.registers[instruction.guard][lanes] ^ instruction.negated

    def _acting(self, instruction: Instruction, lanes: Lanes) -> Lanes:
        if instruction.guard is None:
            return lanes
        return self.thread[lanes][self._taken(instruction, lanes)]

    def _control(self, instruction: Instruction, lanes: Lanes, at: int) -> None:
        op = instruction.op[0]
        if op == "bar":
            self.at[lanes] = at
            self.waiting[lanes] = True
            return
        end = len(self.program.code)
        target = self.program.labels[instruction.args[0]] if op == "bra" else end
        self.at[lanes] = np.where(self._taken(instruction, lanes), target, at + 1)

    # -- operands -----------------------------------------------------------------

    def _read(self, operand: str, dtype: type[np.generic], lanes: Lanes) -> np.ndarray:
        """An operand as a type: a register's low bits, a number, or a shared address."""
        if operand.startswith("%"):
            source = self.special if operand in self.special else self.registers
            value = source[operand][lanes]
            if value.dtype == np.bool_:
                return value
            return value.astype(_unsigned(dtype), copy=False).view(dtype)
        if operand.startswith("0f"):
            return np.array([int(operand[2:], 16)], np.uint32).view(dtype)
        number = self.program.shared.get(operand)
        number = int(operand, 0) if number is None else number
        if dtype is np.bool_:
            return np.array([bool(number)])
        bits = _unsigned(dtype)
        return np.array([number & int(np.iinfo(bits).max)], bits).view(dtype)

    def _write(self, name: str, value: np.ndarray, lanes: Lanes) -> None:
        """Put a result into a register; a wider one takes it extended by its sign."""
        register = self.registers[name]
        if register.dtype != np.bool_ and value.dtype.kind == "f":
            value = value.view(_unsigned(value.dtype.type))
        register[lanes] = value.astype(register.dtype, copy=False)

    def _address(self, operand: str, lanes: Lanes, align: int, where: Instruction) -> np.ndarray:
        match = re.fullmatch(r"\[([%\w$]+)(?:\+(-?\d+))?\]", operand)
        if match is None:
            raise PtxFault(f"not an address: {operand}")
        base = self._read(match[1], np.int64, lanes)
        address = np.broadcast_to(base + int(match[2] or 0), self.thread[lanes].shape)
        if (address % align).any():
            raise PtxFault(f"not aligned to {align} bytes: {where.text}")
        return address

    # -- meaning ------------------------------------------------------------------

    def _execute(self, instruction: Instruction, lanes: Lanes) -> None:
        op, args = instruction.op, instruction.args
        if op[0] in ("ld", "st"):
            self._transfer(instruction, lanes)
        elif op[0] == "mov" and args[0].startswith("{"):
            self._unpack(args, TYPES[op[-1]], lanes)
        else:
            self._write(args[0], self._result(instruction, lanes), lanes)

    def _result(self, instruction: Instruction, lanes: Lanes) -> np.ndarray:
        op, args = instruction.op, instruction.args
        name, dtype = op[0], TYPES[op[-1]]

        def arg(index: int, type: type[np.generic] = dtype) -> np.ndarray:
            return self._read(args[index], type, lanes)

        if name == "mov" and args[1].startswith("{"):
            return self._pack(args[1], dtype, lanes)
        if name in ("min", "max") and dtype is np.float32:
            return _extremum(name, arg(1), arg(2))
        if name in SIMPLE:
            return SIMPLE[name](*(arg(i) for i in range(1, len(args))))
        if name == "mul":
            return _multiply(op, arg(1), arg(2))
        if name == "mad":
            product = _multiply(op, arg(1), arg(2))
            return product + arg(3, product.dtype.type)
        if name in ("shl", "shr"):
            return _shift(name, arg(1), arg(2, np.uint32))
        if name == "bfe":
            return _extract(arg(1), arg(2, np.uint32), arg(3, np.uint32))
        if name == "prmt":
            return _permute(arg(1, np.uint32), arg(2, np.uint32), arg(3, np.uint32))
        if name == "selp":
            return np.where(arg(3, np.bool_), arg(1), arg(2))
        if name == "setp":
            holds = COMPARES[op[1]](arg(1), arg(2))
            if len(args) == 4:
                holds = SIMPLE[op[2]](holds, arg(3, np.bool_))
            return holds
        if name == "cvt":
            return _convert(op, arg(1))
        if name == "dp4a":
            return _dot4(op, arg(1, np.uint32), arg(2, np.uint32), arg(3, np.int32))
        raise PtxFault(f"not in the interpreter, or not in the contract: {instruction.text}")

    def _parts(self, operand: str) -> list[str]:
        """Registers of `{a, b}`, or the one register."""
        return [part.strip() for part in operand.strip("{}").split(",")]

    def _unpack(self, args: tuple[str, ...], dtype: type[np.generic], lanes: Lanes) -> None:
        """`mov.b32 {low, high}, whole`."""
        whole, bits = self._read(args[1], dtype, lanes), 4 * dtype().itemsize
        for index, part in enumerate(self._parts(args[0])):
            if part != "tmp":
                shifted = whole >> dtype(bits * index)  # type: ignore[call-arg]
                self._write(part, shifted.astype(TYPES[f"b{bits}"]), lanes)

    def _pack(self, operand: str, dtype: type[np.generic], lanes: Lanes) -> np.ndarray:
        """`mov.b32 whole, {low, high}`."""
        bits = 4 * dtype().itemsize
        low, high = (
            self._read(part, TYPES[f"b{bits}"], lanes).astype(dtype)
            for part in self._parts(operand)
        )
        return low | high << dtype(bits)  # type: ignore[call-arg]

    def _transfer(self, instruction: Instruction, lanes: Lanes) -> None:
        """Loads and stores, of one register or of a vector of them."""
        op, args = instruction.op, instruction.args
        dtype = _unsigned(TYPES[op[-1]])
        if "param" in op:
            value = np.asarray(self.params[args[1].strip("[]")])
            full = np.broadcast_to(value, self.thread[lanes].shape)
            self._write(args[0], full, lanes)
            return
        loads = op[0] == "ld"
        registers = self._parts(args[0] if loads else args[1])
        width = dtype().itemsize
        start = self._address(
            args[1] if loads else args[0], lanes, width * len(registers), instruction
        )
        thread, group = self.thread[lanes], self.group[lanes]
        if "shared" in op and width != 4:
            raise PtxFault(f"shared memory is read and written by words: {instruction.text}")
        for index, register in enumerate(registers):
            address = start + width * index
            if loads and "shared" in op:
                self._write(register, self.shared.load(address, thread, group, instruction), lanes)
            elif loads:
                self._write(register, self.memory.load(address, width, instruction), lanes)
            else:
                values = np.broadcast_to(self._read(register, dtype, lanes), thread.shape)
                if "shared" in op:
                    self.shared.store(address, values, thread, group, instruction)
                else:
                    self.memory.store(address, values, instruction)


class PtxRunner:
    """Compiles kernels to PTX and interprets them: a GPU for tests."""

    name = "interpreted PTX"

    def __init__(self) -> None:
        self._code: dict[Kernel, GpuCode] = {}
        self._programs: dict[Kernel, Program] = {}

    def code(self, kernel: Kernel) -> GpuCode:
        """The kernel's PTX, built once."""
        if kernel not in self._code:
            self._code[kernel] = ptx.emit(kernel)
        return self._code[kernel]

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        buffers: Mapping[str, np.ndarray],
        params: Mapping[str, Number],
    ) -> None:
        """Run a kernel over the grid; what it wrote lands in the arrays of `buffers`.

        *Raises*: `PtxFault`.
        """
        code = self.code(kernel)
        if kernel not in self._programs:
            self._programs[kernel] = parse(code.code.decode())
        run_program(self._programs[kernel], code, grid, buffers, params)


def run_program(
    program: Program,
    code: GpuCode,
    grid: tuple[int, int, int],
    buffers: Mapping[str, np.ndarray],
    params: Mapping[str, Number],
) -> None:
    """Launch parsed PTX.

    *Raises*: `PtxFault`.
    """
    arrays = [buffers[slot.name] for slot in code.buffers]
    memory = GlobalMemory(arrays)
    values: list[np.generic] = [np.uint64(address) for address in memory.addresses]
    for slot in code.params:
        given = params[slot.name]
        values.append(np.float32(given) if slot.type is F32 else np.uint32(int(given) & 0xFFFFFFFF))
    _Launch(program, grid, code.workgroup, memory, values).run()
    for address, array in zip(memory.addresses, arrays, strict=True):
        if array.flags.writeable:
            written = memory.data[address : address + array.nbytes]
            array.reshape(-1).view(np.uint8)[:] = written
