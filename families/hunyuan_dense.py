"""Hunyuan dense (0.5B to 7B): Llama with halves for rope pairs and head norms after rope.

Per layer: norm, grouped-query attention whose query and key heads are turned, then normed, norm,
SwiGLU; each added to the residual. A file may ask for the "dynamic NTK" scaling of the rope base
by `rope.scaling.alpha`.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

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
from kinetic.ir.rope_tables import exp, ln


def build(file: GGUFFile) -> Graph:
    """The graph of a hunyuan-dense file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    rope = scaled(cfg)

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache()
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            q = b.rope(q, None, "q_rope", **rope.attrs())
            k = b.rope(k, None, "k_rope", **rope.attrs())
            q = norm(b, q, "attn_q_norm", cfg, cfg.head_dim)
            k = norm(b, k, "attn_k_norm", cfg, cfg.head_dim)
            a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            x = b.add(x, gated_ffn(b, h, cfg), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)


def scaled(cfg: Config) -> Rope:
    """The rope with its base times `alpha ^ (Dh / (Dh - 2))`."""
    alpha, width = cfg.h.number("rope.scaling.alpha", 0.0), cfg.head_dim
    if not alpha:
        return cfg.rope
    if alpha < 0 or width < 4:
        raise cfg.h.wrong("rope.scaling.alpha", "a number above 0, for heads of 4 or wider")
    base = cfg.rope.base * exp(ln(alpha) * width / (width - 2))
    if not 1 < base <= 2.0**126:
        raise cfg.h.wrong("rope.scaling.alpha", "one that leaves a rope base above 1")
    return replace(cfg.rope, base=float(str(np.float32(base))))
