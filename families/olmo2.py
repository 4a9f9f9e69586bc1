"""OLMo 2 and 3: norms after each half instead of before, and over whole queries and keys.

Per layer: attention, norm, SwiGLU, norm; each added to the residual. The norm of queries (and of
keys) is over all heads at once, before rope. OLMo 3: three of four layers (or as the file says)
see only a window, and their rope is never scaled.
Source: OLMo et al. 2025, 2 OLMo 2 Furious, section 2.
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
    project,
)
from kinetic.families.config import Config, Rope
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph, Node


def build(file: GGUFFile) -> Graph:
    """The graph of an olmo2 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    sliding = (
        cfg.h.count("attention.sliding_window") if cfg.h.has("attention.sliding_window") else None
    )
    slides = cfg.h.sliding_layers("attention.sliding_window_pattern", 4, cfg.n_layers)
    local = Rope("neox", cfg.rope.rot, cfg.rope.base)
    if cfg.h.has("rope.freq_base_swa") and cfg.h.number("rope.freq_base_swa") != cfg.rope.base:
        cfg.h.refuse("rope.freq_base_swa", "sliding layers have a rope base of their own")

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        full = sliding is None or not slides[i]
        window, rope = (None, cfg.rope) if full else (sliding, local)
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache(window)
            q = normed_heads(b, x, "q", cfg.n_heads, cfg)  # [T, H, Dh]
            k = normed_heads(b, x, "k", cfg.n_kv_heads, cfg)  # [T, Hkv, Dh]
            v = project(b, x, "attn_v", cfg.n_kv_heads * cfg.v_dim, cfg.n_embd)
            v = b.split_heads(v, cfg.n_kv_heads, "v")  # [T, Hkv, Dv]
            q = b.rope(q, None, "q_rope", **rope.attrs())
            k = b.rope(k, None, "k_rope", **rope.attrs())
            scale = 1 / sqrt(cfg.head_dim)
            a = b.attention(q, k, v, scale=scale, window=window, cache=f"blk.{i}")
            y = norm(b, attention_out(b, a, cfg), "post_attention_norm", cfg)
            x = b.add(x, y, "attn_residual")
            y = norm(b, gated_ffn(b, x, cfg), "post_ffw_norm", cfg)
            x = b.add(x, y, "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)


def normed_heads(b: Builder, x: Node, part: str, heads: int, cfg: Config) -> Node:
    """Queries or keys, normed over all heads at once, then seen as heads."""
    width = heads * cfg.head_dim
    y = norm(b, project(b, x, f"attn_{part}", width, cfg.n_embd), f"attn_{part}_norm", cfg, width)
    return b.split_heads(y, heads, part)
