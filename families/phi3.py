"""Phi-3, Phi-3.5 and Phi-4: Llama with fused matrices, rope over halves and LongRoPE.

Per layer: norm, grouped-query attention, norm, SwiGLU; each added to the residual. Queries, keys
and values are one matrix; so are gate and up. A file for long contexts has two lists of rope
factors: the short one is right up to the context that the model was first trained on, and the
long one for runs whose context is longer. Keys are kept turned, so a run has one list throughout.
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
    """The graph of a phi3 file, its context no longer than the model's first one.

    Raises: ModelFileError, UnsupportedError.
    """
    return _build(file, "short", "long")


def build_long(file: GGUFFile) -> Graph:
    """The graph for all of the file's context.

    Raises: ModelFileError, UnsupportedError.
    """
    return _build(file, "long", "short")


def _build(file: GGUFFile, taken: str, other: str) -> Graph:
    b, cfg = Builder(file), Config.read(file, rope_kind="neox", longrope=True)
    seen = cfg.h.count("attention.sliding_window", 0, least=0)
    window = seen if 0 < seen < cfg.n_ctx else None
    first = cfg.h.count("rope.scaling.original_context_length", cfg.n_ctx)
    factors = None
    if b.has("rope_factors_short.weight"):
        factors = b.weight(f"rope_factors_{taken}.weight", (cfg.rope.rot // 2,))
        b.skip(f"rope_factors_{other}.weight")
        if taken == "short":
            cfg = replace(cfg, n_ctx=min(first, cfg.n_ctx))

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
