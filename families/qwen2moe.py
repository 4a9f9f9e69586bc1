"""Qwen2 with experts (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): Qwen2 but for its feed-forward.

Per layer: norm, grouped-query attention with biases, norm, a mixture; each added to the residual.
The chosen experts keep the weights that the softmax over all gave them. Every row also meets a
shared expert, through a gate of its own.
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
    """The graph of a qwen2moe file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    used = cfg.h.count("expert_used_count")
    found = Experts.read(cfg.h, max(1, cfg.n_ff // used))  # older files give the width of all
    experts = replace(found, shared=found.shared or cfg.n_ff, norm_weights=False)

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
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            x = b.add(x, moe(b, h, cfg, experts), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
