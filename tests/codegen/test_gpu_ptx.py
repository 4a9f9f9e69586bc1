"""What LLVM makes of our kernels for NVIDIA: plain roundings, few registers, no spills."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import gpu_kernels

from kinetic.codegen.kernels.builder import Kernel
from kinetic.codegen.targets import ptx

FORBIDDEN = re.compile(r"\b(fma|mad\.f32|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos|tanh)\b|\.(ftz|approx)")
FLOAT = re.compile(r"\b(add|sub|mul)\.(\w+\.)?f32")
ids = {"ids": lambda kernel: kernel.name}


@pytest.mark.parametrize("kernel", gpu_kernels.ALL, **ids)
def test_only_the_contracts_float_operations(kernel: Kernel) -> None:
    text = ptx.emit(kernel).code.decode()
    assert not FORBIDDEN.search(text)
    assert {match[2] for match in FLOAT.finditer(text)} <= {"rn."}


@pytest.mark.parametrize("kernel", gpu_kernels.ALL, **ids)
def test_ir_has_no_fast_math(kernel: Kernel) -> None:
    flags = re.compile(r"\bf(add|sub|mul)\b (fast|contract|reassoc|nnan|ninf|nsz|arcp|afn)")
    assert not flags.search(ptx.emit_llvm(kernel))


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", gpu_kernels.ALL, **ids)
def test_registers_do_not_spill(kernel: Kernel, chip: str, tmp_path: Path) -> None:
    assembler = shutil.which("ptxas")
    if assembler is None:
        pytest.skip("ptxas is not installed")
    source = tmp_path / "kernel.ptx"
    source.write_bytes(ptx.emit(kernel, chip).code)
    run = subprocess.run(
        [assembler, "-v", f"-arch={chip}", str(source), "-o", str(tmp_path / "kernel.cubin")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in run.stderr
