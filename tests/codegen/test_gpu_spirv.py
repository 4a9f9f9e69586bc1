"""What every SPIR-V module of ours has to say about arithmetic, and that it is valid."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from support import gpu_kernels

from kinetic.codegen.kernels.builder import F32, U32, Builder, Kernel
from kinetic.codegen.targets import spirv
from kinetic.codegen.targets.spirv import Capability, Decoration, Mode, Op
from kinetic.errors import InternalError

FLOAT_OPS = {Op.FAdd, Op.FSub, Op.FMul}
ids = {"ids": lambda kernel: kernel.name}


def instructions(code: bytes) -> list[list[int]]:
    """The module's instructions, opcode first."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    found, at = [], 5
    while at < len(words):
        length = words[at] >> 16
        found.append([words[at] & 0xFFFF, *words[at + 1 : at + length]])
        at += length
    return found


@pytest.mark.parametrize("kernel", gpu_kernels.ALL, **ids)
def test_no_float_operation_may_be_contracted(kernel: Kernel) -> None:
    code = instructions(spirv.emit(kernel).code)
    guarded = {
        line[1] for line in code if line[0] == Op.Decorate and line[2] == Decoration.NoContraction
    }
    assert guarded >= {line[2] for line in code if line[0] in FLOAT_OPS}


@pytest.mark.parametrize("kernel", gpu_kernels.ALL, **ids)
def test_rounding_and_specials_are_declared(kernel: Kernel) -> None:
    code = instructions(spirv.emit(kernel, denorm_preserve=True).code)
    modes = {(line[2], line[3]) for line in code if line[0] == Op.ExecutionMode}
    capabilities = {line[1] for line in code if line[0] == Op.Capability}
    for mode in (Mode.RoundingModeRTE, Mode.SignedZeroInfNanPreserve, Mode.DenormPreserve):
        assert (mode, 32) in modes
        assert Capability[mode.name] in capabilities


@pytest.mark.parametrize("kernel", gpu_kernels.ALL, **ids)
def test_modules_are_valid(kernel: Kernel, tmp_path: Path) -> None:
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("spirv-val is not installed")
    module = tmp_path / "kernel.spv"
    module.write_bytes(spirv.emit(kernel).code)
    run = subprocess.run(
        [validator, "--target-env", "vulkan1.3", str(module)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_same_kernel_gives_the_same_words() -> None:
    kernel = gpu_kernels.ALL[0]
    assert spirv.emit(kernel) == spirv.emit(kernel)


def test_the_calling_convention_is_in_the_result() -> None:
    code = spirv.emit(gpu_kernels.ALL[0])
    assert [slot.name for slot in code.buffers] == ["x", "codes", "scales", "sums"]
    assert [(slot.name, slot.type) for slot in code.params] == [("words", U32)]
    assert code.workgroup == 64


def mixing(k: Builder) -> None:
    k.const(F32, 1.0) + k.const(U32, 1)


def storing(k: Builder) -> None:
    k.buffer("y", F32)[0] = k.const(U32, 1)


def assigning(k: Builder) -> None:
    k.variable(k.const(F32, 1.0)).value = k.const(U32, 1)


@pytest.mark.parametrize("body", [mixing, storing, assigning])
def test_types_do_not_mix(body: object) -> None:
    assert callable(body)
    with pytest.raises(InternalError, match="kernel wrong"):
        spirv.emit(Kernel("wrong", 32, body))
