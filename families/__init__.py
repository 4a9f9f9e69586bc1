"""Model families: `build(file)` turns a GGUF file's metadata and tensors into a graph.

One file a family, named as GGUF names the architecture, found through `SUPPORTED` and
imported only when a file asks for it.
"""

from __future__ import annotations

from importlib import import_module

from kinetic.errors import UnsupportedError
from kinetic.ir.gguf import GGUFFile, display_path, printable
from kinetic.ir.graph import Graph

SUPPORTED: dict[str, str] = {
    "llama": "kinetic.families.llama",
    "qwen2": "kinetic.families.qwen2",
    "qwen3": "kinetic.families.qwen3",
    "gemma3": "kinetic.families.gemma3",
    "qwen3moe": "kinetic.families.qwen3moe",
    "granite": "kinetic.families.granite",
    "granitemoe": "kinetic.families.granite",
    "ernie4_5": "kinetic.families.ernie4_5",
    "ernie4_5-moe": "kinetic.families.ernie4_5",
    "olmo2": "kinetic.families.olmo2",
    "exaone4": "kinetic.families.exaone4",
    "hunyuan-dense": "kinetic.families.hunyuan_dense",
}
"""The module of each architecture, by the file's `general.architecture`."""


def build(file: GGUFFile) -> Graph:
    """The graph of the model in this file.

    Raises: UnsupportedError for an architecture, setting or tensor that Kinetic lacks;
    ModelFileError where metadata and tensors do not fit together.
    """
    arch = file.architecture
    if arch not in SUPPORTED:
        raise UnsupportedError(
            f"{display_path(file.path)}: architecture {printable(arch)} is not supported yet; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    graph: Graph = import_module(SUPPORTED[arch]).build(file)
    return graph
