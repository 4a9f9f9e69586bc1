"""Qwen3 with experts (30B-A3B, 235B-A22B, Coder): Qwen3 but for its feed-forward.

Per layer: norm, grouped-query attention over heads normed before rope, norm, a mixture whose
chosen experts' weights sum to 1; each added to the residual. Every layer is a mixture.
"""

from __future__ import annotations

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
    """The graph of a qwen3moe file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    experts = Experts.read(cfg.h, cfg.n_ff)

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
            x = b.add(x, moe(b, h, cfg, experts), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
