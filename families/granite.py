"""Granite 3 and 4: Llama with four multipliers of its own, and in Granite 4 H Mamba-2 layers.

`granite` has a SwiGLU in each layer, `granitemoe` experts (and, from a size the file gives, one
expert that all rows share). `granitehybrid` has either, and Mamba-2 in place of attention in the
layers without key/value heads. The embedding, both halves of a layer and the scores have a scale
from the file; the logits are divided by one.
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
from kinetic.families.config import SSM, Config, Experts, experts_if_any
from kinetic.families.recurrent import mamba2
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph, Node


def build(file: GGUFFile) -> Graph:
    """The graph of a granite, granitemoe or granitehybrid file.

    Raises: ModelFileError, UnsupportedError.
    """
    hybrid = file.architecture == "granitehybrid"
    b, cfg = Builder(file), Config.read(file, rope_kind="norm", hybrid=hybrid)
    ssm = SSM.read(cfg.h) if hybrid else None
    experts = Experts.read(cfg.h, cfg.n_ff) if cfg.h.arch == "granitemoe" else None
    experts = experts_if_any(cfg.h, cfg.n_ff) if hybrid else experts
    divisor = cfg.h.positive("logit_scale")
    embed_scale = cfg.h.multiplier("embedding_scale") or 1.0
    residual_scale = cfg.h.multiplier("residual_scale") or 1.0
    scale = cfg.h.multiplier("attention.scale") or 1 / sqrt(cfg.head_dim)
    turns = cfg.h.flag("rope.scaling.finetuned", True)  # the converter's word for "has rope"

    caches: dict[str, CacheSpec] = {}
    x, table = embedding(b, cfg)
    x = scaled(b, x, embed_scale, "inp_scaled")  # [T, D]
    factors = b.maybe_weight("rope_freqs.weight", (cfg.rope.rot // 2,)) if turns else None
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            h = norm(b, x, "attn_norm", cfg)
            if ssm and cfg.recurrent[i]:
                y = mamba2(b, h, cfg, ssm, caches)
            else:
                caches[f"blk.{i}"] = cfg.cache()
                q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
                if turns:
                    q = b.rope(q, factors, "q_rope", **cfg.rope.attrs())
                    k = b.rope(k, factors, "k_rope", **cfg.rope.attrs())
                a = b.attention(q, k, v, scale=scale, cache=f"blk.{i}")
                y = attention_out(b, a, cfg)
            x = b.add(x, scaled(b, y, residual_scale, "attn_scaled"), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            y = moe(b, h, cfg, experts) if experts else gated_ffn(b, h, cfg)
            x = b.add(x, scaled(b, y, residual_scale, "ffn_scaled"), "ffn_residual")
    raw = logits(b, x, table, cfg, "logits_raw")
    return finish(b, cfg, b.scale(raw, 1 / divisor, "logits"), caches)


def scaled(b: Builder, x: Node, value: float, name: str) -> Node:
    """`x * value`, and `x` itself where that changes nothing."""
    return x if value == 1 else b.scale(x, value, name)
