"""Ministral 3 and Mistral 3: Llama whose queries may grow with their position.

Per layer: norm, grouped-query attention with interleaved rope, norm, SwiGLU or experts; each added
to the residual. With a temperature, a query past the first context is scaled by the logarithm of
how many such contexts lie behind it.
Source: the Llama 4 reference code, which introduced that scale.
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
    moe,
    norm,
    qkv,
)
from kinetic.families.config import Config, experts_if_any
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph
from kinetic.ir.rope_tables import ln


def build(file: GGUFFile) -> Graph:
    """The graph of a mistral3 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="norm")
    experts = experts_if_any(cfg.h, cfg.n_ff)
    temperature = cfg.h.multiplier("attention.temperature_scale")
    every = cfg.h.count("rope.scaling.original_context_length", cfg.n_ctx)
    log_multiplier = cfg.h.number("rope.scaling.yarn_log_multiplier", 0.0)
    rope = cfg.rope
    if log_multiplier and rope.scaling == "yarn":  # the magnitude of YaRN over itself
        if log_multiplier != 1:
            cfg.h.refuse("rope.scaling.yarn_log_multiplier", "a magnitude of YaRN of its own")
        rope = replace(rope, attn_factor=rope.attn_factor / (1 + 0.1 * ln(rope.factor)))

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    factors = b.maybe_weight("rope_freqs.weight", (cfg.rope.rot // 2,))
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache()
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            if temperature is not None:
                q = b.op("temper", q, name="q_tempered", scale=temperature, every=every)
            q = b.rope(q, factors, "q_rope", **rope.attrs())
            k = b.rope(k, factors, "k_rope", **rope.attrs())
            a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            y = moe(b, h, cfg, experts) if experts else gated_ffn(b, h, cfg)
            x = b.add(x, y, "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
