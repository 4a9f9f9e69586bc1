"""Falcon-H1: attention and Mamba-2 side by side in every layer, over the same norm.

Per layer: norm, then grouped-query attention and Mamba-2, both added to the residual; norm,
SwiGLU, added. The multipliers of its muP training are folded into the weights. The norm before
the feed-forward is a tensor without the usual `.weight`.
"""

from __future__ import annotations

from math import sqrt

from kinetic.families.common import attention_out, embedding, finish, gated_ffn, logits, norm, qkv
from kinetic.families.config import SSM, Config
from kinetic.families.recurrent import mamba2
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph


def build(file: GGUFFile) -> Graph:
    """The graph of a falcon-h1 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    ssm = SSM.read(cfg.h)

    caches: dict[str, CacheSpec] = {}
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
            x = b.add(x, mamba2(b, h, cfg, ssm, caches), "ssm_residual")
            h = b.rms_norm(x, b.weight("ffn_norm", (cfg.n_embd,)), cfg.eps, "ffn_normed")
            x = b.add(x, gated_ffn(b, h, cfg), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
