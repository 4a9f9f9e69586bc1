"""BERT, and the encoders made of it: BGE, E5, GTE, MiniLM, cross-encoders for reranking.

Rows see their whole text. Positions come from a table, a norm with mean and bias stands after
each half of a layer, and the feed-forward is not gated; its GELU is the exact one.
*Source:* Devlin et al. 2018, arXiv:1810.04805; `BertModel` in Hugging Face transformers.
"""

from __future__ import annotations

from kinetic.families.common import finish, project
from kinetic.families.encoder import attended, embedded, layer_norm, read_encoder
from kinetic.families.pooling import pooled
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph


def build(file: GGUFFile) -> Graph:
    """The graph of a bert file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), read_encoder(file)
    cfg.h.refuse("rope.freq_base", "positions are turned, not looked up")

    caches: dict[str, CacheSpec] = {}
    x = embedded(b, cfg, table=True)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            a = attended(b, x, cfg, i, caches, turns=False)
            x = layer_norm(b, b.add(x, a, "attn_residual"), "attn_output_norm", cfg)
            h = b.op("gelu_erf", project(b, x, "ffn_up", cfg.n_ff, cfg.n_embd), name="ffn_act")
            y = project(b, h, "ffn_down", cfg.n_embd, cfg.n_ff)
            x = layer_norm(b, b.add(x, y, "ffn_residual"), "layer_output_norm", cfg)
    return finish(b, cfg, pooled(b, x, cfg), caches)
