"""Model families: `build(file)` turns a GGUF file's metadata and tensors into a graph.

One file a family, named as GGUF names the architecture, found through `SUPPORTED` and
imported only when a file asks for it.
"""

from __future__ import annotations

from importlib import import_module

from kinetic.errors import UnsupportedError
from kinetic.ir.gguf import GGUFFile, display_path, printable
from kinetic.ir.graph import Graph

ENCODERS: dict[str, str] = {
    "bert": "kinetic.families.bert",
    "nomic-bert": "kinetic.families.nomic_bert",
    "gemma-embedding": "kinetic.families.gemma_embedding",
}
"""Those whose rows see their whole text: they make embeddings and scores, never text."""

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
    **ENCODERS,
    "lfm2": "kinetic.families.lfm2",
    "lfm2moe": "kinetic.families.lfm2",
    "lfm3": "kinetic.families.lfm2",
    "granitehybrid": "kinetic.families.granite",
    "falcon-h1": "kinetic.families.falcon_h1",
    "qwen35": "kinetic.families.qwen35",
    "qwen35moe": "kinetic.families.qwen35",
    "gemma4": "kinetic.families.gemma4",
    "smollm3": "kinetic.families.smollm3",
    "phi3": "kinetic.families.phi3",
    "gpt-oss": "kinetic.families.gpt_oss",
    "mistral3": "kinetic.families.mistral3",
    "glm4": "kinetic.families.glm4",
    "qwen3vl": "kinetic.families.qwen3vl",
    "qwen2moe": "kinetic.families.qwen2moe",
}
"""The module of each architecture, by the file's `general.architecture`."""

EXPERIMENTAL = ("lfm3",)
"""Families without a public reference to hold them to."""

DRAFTING = ("qwen35", "qwen35moe")
"""Families whose files may hold a block that predicts a further token."""

LONG = ("phi3",)
"""Families whose graph is another one for contexts longer than the model's first."""


def is_embedding(file: GGUFFile) -> bool:
    """Whether a file is an embedding or reranking model: an encoder, or one with pooling."""
    return pooling_of(file) is not None


def pooling_of(file: GGUFFile) -> str | None:
    """How an embedding or reranking model pools a text's rows (`rank` for scores), as its
    metadata says; None for a model that generates text."""
    from kinetic.families.config import POOLINGS

    arch = file.architecture
    found = file.metadata.get(f"{arch}.pooling_type", 0)
    named = POOLINGS.get(found, "unknown") if isinstance(found, int) and found else None
    return named or ("mean" if arch in ENCODERS else None)


def build(file: GGUFFile, n_ctx: int | None = None) -> Graph:
    """The graph of the model in this file, for runs of `n_ctx` positions (0: all that it
    supports), which few families ask for.

    Raises: UnsupportedError for an architecture, setting or tensor that Kinetic lacks;
    ModelFileError where metadata and tensors do not fit together.
    """
    arch = file.architecture
    if arch not in SUPPORTED:
        raise UnsupportedError(
            f"{display_path(file.path)}: architecture {printable(arch)} is not supported yet; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    family = import_module(SUPPORTED[arch])
    graph: Graph = family.build(file)
    if arch in LONG and n_ctx is not None and not 0 < n_ctx <= graph.meta.n_ctx_train:
        graph = family.build_long(file)
    return graph


def build_draft(file: GGUFFile) -> Graph | None:
    """The graph of the file's own drafting block (multi-token prediction), None without one.

    Raises: UnsupportedError, ModelFileError.
    """
    if file.architecture not in DRAFTING:
        return None
    graph: Graph | None = import_module(SUPPORTED[file.architecture]).build_draft(file)
    return graph
