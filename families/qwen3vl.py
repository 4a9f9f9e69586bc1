"""Qwen3-VL, its text model: Qwen3 whose rope pairs lie in sections.

The sections turn by time, height and width; the positions of text are all three at once, so all
pairs turn as in Qwen3. What the first layers add for an image is nothing for text.
Source: Bai et al. 2025, Qwen3-VL, section 2.
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
from kinetic.families.config import Config
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph


def build(file: GGUFFile) -> Graph:
    """The graph of a qwen3vl file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    cfg.h.counts("rope.dimension_sections")
    cfg.h.count("n_deepstack_layers", 0, least=0)

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache()
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = norm(b, q, "attn_q_norm", cfg, cfg.head_dim)
            k = norm(b, k, "attn_k_norm", cfg, cfg.head_dim)
            q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
            k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
            a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            x = b.add(x, gated_ffn(b, h, cfg), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
