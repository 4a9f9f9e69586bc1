"""ERNIE 4.5: Llama with a head width of its own; `ernie4_5-moe` has experts in most layers.

The first `leading_dense_block_count` layers, and of the rest all but each
`interleave_moe_layer_step`-th, keep a SwiGLU. A mixture adds a bias to its router's weights
for the choice alone, and has an expert that all rows share.
"""

from __future__ import annotations

from math import sqrt

from kinetic.families.common import (
    attention_out,
    embedding,
    finish,
    gated_ffn,
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
    """The graph of an ernie4_5 or ernie4_5-moe file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="norm")
    experts, dense, step = None, cfg.n_layers, 1
    if cfg.h.arch == "ernie4_5-moe":
        experts = Experts.read(cfg.h, cfg.n_ff)
        dense = cfg.h.count("leading_dense_block_count", 0, least=0)
        step = cfg.h.count("interleave_moe_layer_step", 1)
        cfg.h.count("expert_shared_count", 0, least=0)  # their joint width says it all

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        mixed = experts if i >= dense and (i + 1) % step == 0 else None
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache()
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
            k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
            a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            y = moe(b, h, cfg, mixed) if mixed else gated_ffn(b, h, cfg)
            x = b.add(x, y, "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
