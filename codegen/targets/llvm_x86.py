"""The x86-64 CPU classes: which machine code to make, and making it.

Two device classes share one set of kernels and, by the arithmetic contract, one set of
words: `cpu-x86_64-avx2` and `cpu-x86_64-scalar` (any x86-64). Within the AVX2 class a
core with VNNI takes its integer dot instruction: integer sums are exact in any order,
so that choice cannot change a word.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import llvmlite.binding as llvm

from kinetic.codegen.targets.llvm_ir import Function
from kinetic.errors import InternalError, UnsupportedError

AVX2_CLASS = "cpu-x86_64-avx2"
SCALAR_CLASS = "cpu-x86_64-scalar"

_AVX2_NEEDS = ("avx2", "fma", "f16c", "bmi2", "popcnt")
_VNNI512_NEEDS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")


@dataclass(frozen=True)
class CpuTarget:
    """A machine to make code for.

    `dot` names the integer dot: `vnni`, `maddubs` or `generic`. `registers` is the
    number of vector registers, which sizes register tiles, and `vector_bits` the width that
    products of many rows use. Every field is part of the object cache's key.
    """

    device_class: str
    cpu: str
    features: str
    dot: str
    registers: int
    vector_bits: int = 256

    @property
    def has_f16c(self) -> bool:
        """Whether f16 converts in hardware (exactly as the contract's bit form)."""
        return self.device_class == AVX2_CLASS

    @property
    def key(self) -> str:
        """Text that names this target and the compiler for caches."""
        version = ".".join(map(str, llvm.llvm_version_info))
        return (
            f"{self.device_class} {self.cpu} {self.features} {self.dot} "
            f"{self.vector_bits} llvm-{version}"
        )


@functools.cache
def _initialize() -> llvm.Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


def host_class() -> str:
    """The best device class of this machine."""
    features = llvm.get_host_cpu_features()
    return AVX2_CLASS if all(features.get(f) for f in _AVX2_NEEDS) else SCALAR_CLASS


def cpu_target(device_class: str | None = None, *, dot: str | None = None) -> CpuTarget:
    """The target of a device class on this machine.

    `dot` forces the integer dot of the AVX2 class: `vnni512` (AVX-512 VNNI in 512-bit vectors),
    `vnni` (AVX-VNNI, or AVX-512 VNNI in 256-bit vectors) or `maddubs`. Tests compare them.

    *Raises* `UnsupportedError` when this CPU cannot run the class.
    """
    _initialize()
    device_class = device_class or host_class()
    if device_class == SCALAR_CLASS:
        return CpuTarget(SCALAR_CLASS, "x86-64", "", "generic", 16)
    if device_class != AVX2_CLASS:
        raise UnsupportedError(
            f"device class {device_class} is not known; use {AVX2_CLASS} or {SCALAR_CLASS}"
        )
    if host_class() != AVX2_CLASS:
        raise UnsupportedError(f"this CPU lacks AVX2, FMA or F16C; use device class {SCALAR_CLASS}")
    chosen = dot or _best_dot()
    if chosen != "maddubs" and chosen not in _vnni_forms():
        raise UnsupportedError(f"this CPU lacks the instructions of the {chosen} dot")
    if chosen == "maddubs":
        features = "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+sse4.2"
        return CpuTarget(AVX2_CLASS, "haswell", features, "maddubs", 16)
    host, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    registers, bits = _vnni_forms()[chosen]
    return CpuTarget(AVX2_CLASS, host, features, "vnni", registers, bits)


def _vnni_forms() -> dict[str, tuple[int, int]]:
    """The forms of `vpdpbusd` that this CPU has: vector registers, and bits of a vector."""
    host = llvm.get_host_cpu_features()
    if all(host.get(f) for f in _VNNI512_NEEDS):
        return {"vnni512": (32, 512), "vnni": (32, 256)}
    return {"vnni": (16, 256)} if host.get("avxvnni") else {}


def _best_dot() -> str:
    return next(iter(_vnni_forms()), "maddubs")


def module_text(target: CpuTarget, functions: Iterable[Function], extra: str = "") -> str:
    """The LLVM module of finished functions (their text from `Function.text`)."""
    functions = list(functions)
    declares = sorted({d for f in functions for d in f.declares})
    features = f' "target-features"="{target.features}"' if target.features else ""
    return "\n".join(
        [
            f'target triple = "{llvm.get_process_triple()}"',
            extra,
            *declares,
            *(f.text for f in functions),
            f'attributes #0 = {{ nounwind "target-cpu"="{target.cpu}"{features} '
            f'"prefer-vector-width"="{target.vector_bits}" '
            f'"min-legal-vector-width"="{target.vector_bits}" }}',
        ]
    )


def _target_machine(target: CpuTarget) -> llvm.TargetMachine:
    return _initialize().create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=2,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )


def _lowered(target: CpuTarget, text: str) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"codegen produced bad LLVM IR: {error}") from error
    machine = _target_machine(target)
    # The kernels are hand-shaped vector code: only clean-up passes are worth their time,
    # and unrolling or vectorizing again would undo the register tiles.
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module, machine


def compile_object(target: CpuTarget, text: str) -> bytes:
    """Machine code of a module, as a relocatable object."""
    module, machine = _lowered(target, text)
    return machine.emit_object(module)


def assembly(target: CpuTarget, text: str) -> str:
    """Assembly of a module, for `kinetic show --asm`."""
    module, machine = _lowered(target, text)
    return machine.emit_assembly(module)


_linked: list[llvm.ResourceTracker] = []
"""Code stays mapped for the life of the process: worker threads may sit in it."""
_linking = threading.Lock()


@functools.cache
def _jit() -> llvm.LLJIT:
    machine = _target_machine(cpu_target())
    return llvm.create_lljit_compiler(machine, use_jit_link=False, suppress_errors=False)


def link(obj: bytes, names: Iterable[str]) -> dict[str, int]:
    """Map an object into this process; the addresses of its functions."""
    _initialize()
    names = list(names)
    builder = llvm.JITLibraryBuilder().add_object_img(obj).add_current_process()
    for name in names:
        builder.export_symbol(name)
    with _linking:  # a library's name must be its own
        tracker = builder.link(_jit(), f"kinetic{len(_linked)}")
        _linked.append(tracker)
    return {name: tracker[name] for name in names}
