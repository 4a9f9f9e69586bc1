"""Every GPU kernel of the project in a small form, for tests of the code itself."""

from __future__ import annotations

from kinetic.codegen.kernels.builder import Kernel
from kinetic.codegen.kernels.gpu.attention import Heads, attention_merge, attention_segments
from kinetic.codegen.kernels.gpu.block_reader import can_read
from kinetic.codegen.kernels.gpu.matmul import matmul
from kinetic.codegen.kernels.gpu.quantize import quantize_rows
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat

_HEADS = Heads(4, 2, 64, 0.125, softcap=30.0)

BLOCK_FORMATS = [f for f in FORMATS.values() if isinstance(f, BlockFormat) and can_read(f)]
"""Those that the GPU kernels multiply by so far."""

ALL: list[Kernel] = [
    quantize_rows(32),
    quantize_rows(256),
    *(matmul(fmt, 4) for fmt in BLOCK_FORMATS),
    attention_segments(_HEADS),
    attention_merge(_HEADS),
]
