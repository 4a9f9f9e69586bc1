"""SmolLM3: Llama whose every fourth layer has no rope.

Per layer: norm, grouped-query attention with interleaved rope, norm, SwiGLU; each added to the
residual.
Source: Yang et al. 2025, Rope to Nope and Back Again, section 5.
"""

from __future__ import annotations

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

PERIOD = 4
"""Of so many layers the last has no rope."""


def build(file: GGUFFile) -> Graph:
    """The graph of a smollm3 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="norm")

    caches = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache()
            h = norm(b, x, "attn_norm", cfg)
            q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
            if (i + 1) % PERIOD:
                q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
                k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
            a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")
            x = b.add(x, attention_out(b, a, cfg), "attn_residual")
            h = norm(b, x, "ffn_norm", cfg)
            x = b.add(x, gated_ffn(b, h, cfg), "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)
