"""Llama and what is built like it: Mistral, SmolLM, TinyLlama, Mixtral (with experts).

Per layer: norm, grouped-query attention with interleaved rope, norm, SwiGLU; each added to
the residual. Variants a file may ask for: biases, a fused qkv matrix, a tied head, linear or
YaRN rope scaling, frequency factors, experts in place of the feed-forward.
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
    """The graph of a llama file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="norm")
    mixed = cfg.h.count("expert_count", 0, least=0) or cfg.h.count("expert_used_count", 0, least=0)
    experts = Experts.read(cfg.h, cfg.n_ff) if mixed else None

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    factors = b.maybe_weight("rope_freqs.weight", (cfg.rope.rot // 2,))
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache()
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = b.rope(q, factors, "q_rope", **cfg.rope.attrs())
            k = b.rope(k, factors, "k_rope", **cfg.rope.attrs())
            a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            y = moe(b, h, cfg, experts) if experts else gated_ffn(b, h, cfg)
            x = b.add(x, y, "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
