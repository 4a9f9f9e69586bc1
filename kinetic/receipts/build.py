"""Which Kinetic this is: one number over its sources and the compiler it uses."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import llvmlite
from blake3 import blake3
from llvmlite import binding

import kinetic


@functools.cache
def build_id() -> str:
    """The first 16 hex digits of the BLAKE3 over Kinetic's sources, llvmlite and LLVM.

    There is no single executable to hash: kernels are compiled from these sources by that
    compiler.
    """
    root = Path(kinetic.__file__).parent
    digest = blake3()
    for name in sorted(_sources(root)):
        content = (root / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    llvm = ".".join(map(str, binding.llvm_version_info))
    digest.update(f"llvmlite {llvmlite.__version__}\0llvm {llvm}\0".encode())
    return digest.hexdigest()[:16]


def _sources(root: Path) -> list[str]:
    """Python files below a folder; the parts of a checkout are links."""
    found = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        place = Path(folder).relative_to(root)
        found += [(place / name).as_posix() for name in names if name.endswith(".py")]
    return found
