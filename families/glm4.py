"""GLM-4 (9B, 32B): Llama with norms before and after each half and a fused gate and up.

Per layer: norm, grouped-query attention, norm; norm, SwiGLU, norm; each added to the residual.
Rope turns the first half of a head's channels. Files of models that see images have `sections` of
rope pairs, which turn alike for text, and pairs of halves.
"""

from __future__ import annotations

from math import sqrt

from kinetic.families.common import (
    attention_out,
    embedding,
    finish,
    gated_ffn,
    logits,
    norm,
    qkv,
)
from kinetic.families.config import Config, Hyper
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph


def build(file: GGUFFile) -> Graph:
    """The graph of a glm4 file.

    Raises: ModelFileError, UnsupportedError.
    """
    sections = Hyper(file).counts("rope.dimension_sections")
    b, cfg = Builder(file), Config.read(file, rope_kind="neox" if any(sections) else "norm")
    cfg.h.counts("rope.dimension_sections")

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache()
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
            k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
            a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")
            y = norm(b, attention_out(b, a, cfg), "post_attention_norm", cfg)
            x = b.add(x, y, "attn_residual")
            y = gated_ffn(b, norm(b, x, "ffn_norm", cfg), cfg, fused=True)
            x = b.add(x, norm(b, y, "post_ffw_norm", cfg), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
