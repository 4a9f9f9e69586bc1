"""ggml's own dot product of one row, called through its C interface.

`ggml_get_type_traits_cpu(type)->vec_dot` is the kernel that llama.cpp uses for a format
that it does not repack. The loop over rows is a small generated function: a call from
Python for each row would cost more than the dot.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinetic.codegen.targets.llvm_x86 import CpuTarget, compile_object, link

_ROWS_LOOP = """
define void @vec_dots(ptr %dot, i32 %n, ptr %out, ptr %x, i64 %row_bytes, ptr %y, i64 %rows) {
entry:
  br label %loop
loop:
  %r = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = mul i64 %r, %row_bytes
  %row = getelementptr i8, ptr %x, i64 %at
  %to = getelementptr float, ptr %out, i64 %r
  call void %dot(i32 %n, ptr %to, i64 0, ptr %row, i64 0, ptr %y, i64 0, i32 1)
  %next = add i64 %r, 1
  %more = icmp slt i64 %next, %rows
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class _CpuTraits(ctypes.Structure):
    """`struct ggml_type_traits_cpu`."""

    _fields_ = (
        ("from_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("vec_dot", ctypes.c_void_p),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    )


class Ggml:
    """A loaded ggml, from the folder of its libraries. Raises: OSError without them."""

    def __init__(self, folder: Path, target: CpuTarget):
        ctypes.CDLL(str(_library(folder, "ggml-base")), ctypes.RTLD_GLOBAL)
        cpu = ctypes.CDLL(str(_library(folder, "ggml-cpu")), ctypes.RTLD_GLOBAL)
        cpu.ggml_cpu_init()
        self._traits = cpu.ggml_get_type_traits_cpu
        self._traits.restype = ctypes.POINTER(_CpuTraits)
        address = link(compile_object(target, _ROWS_LOOP), ["vec_dots"])["vec_dots"]
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self._loop = ctypes.CFUNCTYPE(
            None, pointer, ctypes.c_int32, pointer, pointer, word, pointer, word
        )(address)

    def dots(self, type_id: int, weights: npt.NDArray[np.uint8], columns: int) -> float | None:
        """Seconds that the dots of all rows with one vector take; None without a kernel.

        *Shapes*: weights [rows, bytes of a row], in the file's layout.
        """
        traits = self._traits(type_id).contents
        if not traits.vec_dot:
            return None
        x = np.linspace(-1, 1, columns, dtype=np.float32)
        quantized = np.zeros(8 * columns + 1024, np.uint8)
        convert = self._traits(traits.vec_dot_type).contents.from_float
        if convert:
            convert(x.ctypes.data, quantized.ctypes.data, columns)
        else:  # its dot takes f32 as it is
            quantized[: x.nbytes] = x.view(np.uint8)
        rows, row_bytes = weights.shape
        out = np.zeros(rows, np.float32)
        started = time.perf_counter()
        self._loop(
            traits.vec_dot,
            columns,
            out.ctypes.data,
            weights.ctypes.data,
            row_bytes,
            quantized.ctypes.data,
            rows,
        )
        return time.perf_counter() - started


def _library(folder: Path, name: str) -> Path:
    for file in (folder / f"lib{name}.so", folder / f"lib{name}.dylib", folder / f"{name}.dll"):
        if file.exists():
            return file
    raise OSError(f"there is no lib{name} in {folder}")
