"""gpt-oss (20B, 120B): experts with biases, attention sinks, windows in every other layer.

Per layer: norm, grouped-query attention in which each head has one score more that has no value,
norm, a mixture with a clamped gate; each added to the residual. The chosen experts' weights sum
to 1. The first of two layers (or as the file says) sees only a window.
Source: OpenAI 2025, gpt-oss model card, section 2; the reference implementation.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from kinetic.families.common import (
    attention_out,
    embedding,
    finish,
    logits,
    moe,
    norm,
    qkv,
)
from kinetic.families.config import Config, Experts
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph


def build(file: GGUFFile) -> Graph:
    """The graph of a gpt-oss file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    experts = replace(Experts.read(cfg.h, cfg.n_ff), act="swiglu_oai")
    sliding = cfg.h.count("attention.sliding_window")
    slides = cfg.h.sliding_layers("attention.sliding_window_pattern", 2, cfg.n_layers)
    if cfg.h.has("rope.freq_base_swa") and cfg.h.number("rope.freq_base_swa") != cfg.rope.base:
        cfg.h.refuse("rope.freq_base_swa", "sliding layers have a rope base of their own")

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        window = sliding if slides[i] else None
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache(window)
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
            k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
            sinks = b.weight("attn_sinks.weight", (cfg.n_heads,))
            scale = 1 / sqrt(cfg.head_dim)
            a = b.attention(q, k, v, scale=scale, window=window, cache=f"blk.{i}", sinks=sinks)
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "post_attention_norm", cfg)
            x = b.add(x, moe(b, h, cfg, experts), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
