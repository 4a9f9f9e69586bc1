"""EXAONE 4: norms after each half instead of before, and over query and key heads before rope.

Per layer: attention, norm, SwiGLU, norm; each added to the residual. The 32B model (the one of
64 layers) sees only a window in three of four layers; its full layers have no rope. In smaller
ones all layers are full, whatever window the file names.
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

LAYERS_32B = 64
"""The 32B model alone has sliding layers."""
PERIOD, WINDOW = 4, 4096
"""Of so many layers the last is full; what a sliding layer sees if the file does not say."""


def build(file: GGUFFile) -> Graph:
    """The graph of an exaone4 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    sliding = cfg.h.count("attention.sliding_window", WINDOW)
    slides = cfg.h.sliding_layers("attention.sliding_window_pattern", PERIOD, cfg.n_layers)
    hybrid = cfg.n_layers == LAYERS_32B
    if hybrid and slides != [i % PERIOD != PERIOD - 1 for i in range(cfg.n_layers)]:
        raise cfg.h.wrong("attention.sliding_window_pattern", f"each {PERIOD}th layer full")

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    factors = b.maybe_weight("rope_freqs.weight", (cfg.rope.rot // 2,))
    for i in range(cfg.n_layers):
        window = sliding if hybrid and slides[i] else None
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache(window)
            q, k, v = qkv(b, x, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = norm(b, q, "attn_q_norm", cfg, cfg.head_dim)
            k = norm(b, k, "attn_k_norm", cfg, cfg.head_dim)
            if window or not hybrid:
                q = b.rope(q, factors, "q_rope", **cfg.rope.attrs())
                k = b.rope(k, factors, "k_rope", **cfg.rope.attrs())
            scale = 1 / sqrt(cfg.head_dim)
            a = b.attention(q, k, v, scale=scale, window=window, cache=f"blk.{i}")
            y = norm(b, attention_out(b, a, cfg), "post_attention_norm", cfg)
            x = b.add(x, y, "attn_residual")
            y = norm(b, gated_ffn(b, x, cfg), "post_ffw_norm", cfg)
            x = b.add(x, y, "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
