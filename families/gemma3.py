"""Gemma 3: norms before and after each half, GELU, and layers that see only a window.

Of every six layers (or as the file says) the last is full; the others slide over a window of
positions, with a rope base of their own and no rope scaling. Embeddings are scaled by sqrt(D),
query and key heads are normed before rope, the head is the embedding.
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
from kinetic.families.config import Config, Rope
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph

LAYERS_27B = 62
"""The 27B model alone scales its scores by the model width over the heads."""


def build(file: GGUFFile) -> Graph:
    """The graph of a gemma3 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    sliding = (
        cfg.h.count("attention.sliding_window") if cfg.h.has("attention.sliding_window") else None
    )
    slides = cfg.h.sliding_layers("attention.sliding_window_pattern", 6, cfg.n_layers)
    local = Rope("neox", cfg.rope.rot, cfg.h.rope_base("rope.freq_base_swa", 10000.0))
    cap = cfg.h.multiplier("final_logit_softcapping")
    query_width = cfg.n_embd // cfg.n_heads if cfg.n_layers == LAYERS_27B else cfg.head_dim
    if not query_width:
        raise cfg.h.wrong("attention.head_count", f"at most {cfg.n_embd}")

    caches = {}
    x, table = embedding(b, cfg)
    x = b.scale(x, sqrt(cfg.n_embd), "inp_scaled")  # [T, D]
    for i in range(cfg.n_layers):
        full = sliding is None or not slides[i]
        window, rope = (None, cfg.rope) if full else (sliding, local)
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache(window)
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = norm(b, q, "attn_q_norm", cfg, cfg.head_dim)
            k = norm(b, k, "attn_k_norm", cfg, cfg.head_dim)
            q = b.rope(q, None, "q_rope", **rope.attrs())
            k = b.rope(k, None, "k_rope", **rope.attrs())
            scale = 1 / sqrt(query_width)
            a = b.attention(q, k, v, scale=scale, window=window, cache=f"blk.{i}")
            y = norm(b, attention_out(b, a, cfg), "post_attention_norm", cfg)
            x = b.add(x, y, "attn_residual")
            y = gated_ffn(b, norm(b, x, "ffn_norm", cfg), cfg, act="gelu_tanh")
            x = b.add(x, norm(b, y, "post_ffw_norm", cfg), "ffn_residual")
    if not cap:
        return finish(b, cfg, logits(b, x, table, cfg), caches)
    raw = logits(b, x, table, cfg, "logits_raw")
    return finish(b, cfg, b.softcap(raw, cap, "logits"), caches)
