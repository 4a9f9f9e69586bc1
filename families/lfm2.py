"""LFM2: gated short convolutions in most layers, attention in a few.

Per layer: norm, a short convolution or grouped-query attention (query and key heads normed
before rope), norm, SwiGLU; each added to the residual. A layer without key/value heads has
the convolution. `lfm2moe` has experts after its first layers, chosen by a sigmoid and a bias.
`lfm3` is experimental: there is no public reference, so it is read as an LFM2 with whatever of
this its metadata asks for, and anything else in the file is refused.
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
from kinetic.families.config import Config, Experts, experts_if_any
from kinetic.families.recurrent import short_conv_block
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph
from kinetic.ir.ops.recurrent import MOST_TAPS

ROUTERS = {1: "softmax", 2: "sigmoid"}
"""By the number that files give a router."""


def build(file: GGUFFile) -> Graph:
    """The graph of an lfm2, lfm2moe or lfm3 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox", hybrid=True)
    taps = cfg.h.count("shortconv.l_cache", least=2, most=MOST_TAPS)
    slides = cfg.h.has("attention.sliding_window")
    window = cfg.h.count("attention.sliding_window", least=0) or None if slides else None
    experts = None if cfg.h.arch == "lfm2" else _experts(cfg)
    dense = cfg.h.count("leading_dense_block_count", 0, least=0) if experts else cfg.n_layers

    caches: dict[str, CacheSpec] = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            h = norm(b, x, "attn_norm", cfg)
            if cfg.recurrent[i]:
                y = short_conv_block(b, h, cfg, taps, caches)
            else:
                caches[f"blk.{i}"] = cfg.cache(window)
                q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]
                q = norm(b, q, "attn_q_norm", cfg, cfg.head_dim)
                k = norm(b, k, "attn_k_norm", cfg, cfg.head_dim)
                q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
                k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
                scale = 1 / sqrt(cfg.head_dim)
                a = b.attention(q, k, v, scale=scale, window=window, cache=f"blk.{i}")
                y = attention_out(b, a, cfg)
            x = b.add(x, y, "residual")
            h = norm(b, x, "ffn_norm", cfg)
            y = moe(b, h, cfg, experts) if experts and i >= dense else gated_ffn(b, h, cfg)
            x = b.add(x, y, "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg, norm_name="token_embd_norm"), caches)


def _experts(cfg: Config) -> Experts | None:
    h = cfg.h
    gating = h.count("expert_gating_func", 2)
    if gating not in ROUTERS:
        raise h.wrong("expert_gating_func", "1 (softmax) or 2 (sigmoid)")
    found = Experts.read(h, cfg.n_ff) if h.arch == "lfm2moe" else experts_if_any(h, cfg.n_ff)
    return found and replace(found, router=ROUTERS[gating])
