"""Phi-3, Phi-3.5 and Phi-4: Llama with fused matrices, rope over halves and LongRoPE.

Per layer: norm, grouped-query attention, norm, SwiGLU; each added to the residual. Queries, keys
and values are one matrix; so are gate and up. A file for long contexts has two lists of rope
factors, of which the short one is right up to the context that the model was first trained on.
That is where Kinetic ends the context of such a file: the long list is not followed.
Source: Ding et al. 2024, LongRoPE.
"""

from __future__ import annotations

from dataclasses import replace
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
    """The graph of a phi3 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox", longrope=True)
    seen = cfg.h.count("attention.sliding_window", 0, least=0)
    window = seen if 0 < seen < cfg.n_ctx else None
    short = cfg.h.count("rope.scaling.original_context_length", cfg.n_ctx)
    factors = b.maybe_weight("rope_factors_short.weight", (cfg.rope.rot // 2,))
    if factors is not None:
        b.skip("rope_factors_long.weight")
        cfg = replace(cfg, n_ctx=min(short, cfg.n_ctx))

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache(window)
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = b.rope(q, factors, "q_rope", **cfg.rope.attrs())
            k = b.rope(k, factors, "k_rope", **cfg.rope.attrs())
            scale = 1 / sqrt(cfg.head_dim)
            a = b.attention(q, k, v, scale=scale, window=window, cache=f"blk.{i}")
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            x = b.add(x, gated_ffn(b, h, cfg, fused=True), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
