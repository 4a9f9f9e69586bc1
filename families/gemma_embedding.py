"""EmbeddingGemma: Gemma 3 whose rows see their whole text, or a window on both sides.

The mean of a text's rows goes through two dense layers, where the file has them.
*Source:* Vera et al. 2025, arXiv:2509.20354.
"""

from __future__ import annotations

from math import sqrt

from kinetic.families.common import attention_out, embedding, finish, gated_ffn, norm, qkv
from kinetic.families.config import MOST_WIDE, Config, Rope
from kinetic.families.encoder import read_encoder
from kinetic.families.pooling import pooled
from kinetic.ir.build import Builder, width
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph, Node


def build(file: GGUFFile) -> Graph:
    """The graph of a gemma-embedding file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), read_encoder(file, eps_key="attention.layer_norm_rms_epsilon")
    sliding = None
    if cfg.h.has("attention.sliding_window"):
        sliding = cfg.h.count("attention.sliding_window", least=2)
    slides = cfg.h.sliding_layers("attention.sliding_window_pattern", 6, cfg.n_layers)
    local = Rope("neox", cfg.rope.rot, cfg.h.rope_base("rope.freq_base_swa", 10000.0))

    caches: dict[str, CacheSpec] = {}
    x, _ = embedding(b, cfg)
    x = b.scale(x, sqrt(cfg.n_embd), "inp_scaled")  # [T, D]
    for i in range(cfg.n_layers):
        window, rope = (sliding, local) if sliding and slides[i] else (None, cfg.rope)
        with b.scope(f"blk.{i}"):
            caches[f"blk.{i}"] = cfg.cache(window)
            q, k, v = qkv(b, norm(b, x, "attn_norm", cfg), cfg)  # [T, H, Dh], [T, Hkv, Dh] twice
            q = norm(b, q, "attn_q_norm", cfg, cfg.head_dim)
            k = norm(b, k, "attn_k_norm", cfg, cfg.head_dim)
            q = b.rope(q, None, "q_rope", **rope.attrs())
            k = b.rope(k, None, "k_rope", **rope.attrs())
            how = {"scale": 1 / sqrt(cfg.head_dim), "window": window, "cache": f"blk.{i}"}
            a = b.op("text_attention", q, k, v, name="attention", **how)
            y = norm(b, attention_out(b, a, cfg), "post_attention_norm", cfg)
            x = b.add(x, y, "attn_residual")
            y = gated_ffn(b, norm(b, x, "ffn_norm", cfg), cfg, act="gelu_tanh")
            x = b.add(x, norm(b, y, "post_ffw_norm", cfg), "ffn_residual")
    x = pooled(b, norm(b, x, "output_norm", cfg), cfg)  # [R, D]
    if cfg.h.pooling() != "rank":
        x = dense(b, dense(b, x, 2, cfg), 3, cfg)
    return finish(b, cfg, x, caches)


def dense(b: Builder, x: Node, number: int, cfg: Config) -> Node:
    """The vectors through `dense_NUMBER`, as they are in a file without it."""
    if not b.has(f"dense_{number}.weight"):
        return x
    name, k = f"dense_{number}", width(x)
    if cfg.h.count(f"{name}_feat_in", k, most=MOST_WIDE) != k:
        raise cfg.h.wrong(f"{name}_feat_in", f"{k}, the width of what comes in")
    n = cfg.h.count(f"{name}_feat_out", cfg.n_embd, most=MOST_WIDE)
    return b.linear(x, b.weight(f"{name}.weight", (n, k)), None, name)
