"""Gemma 4: Gemma 3 whose full layers have wider heads, and more in the small and the mixed models.

Scores are not scaled; values are normed, and where a layer has no `attn_v` they are its keys
before their norm. Full layers turn by `rope_freqs`. E2B and E4B: the last layers read the cache of
an earlier layer of their kind, and each layer adds an embedding of its own, gated by the stream.
26B A4B: beside the feed-forward experts, whose router reads the stream normed in its own way.
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
    project,
)
from kinetic.families.config import MOST_WIDE, Config, Experts, Rope, experts_if_any
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph, Node


def build(file: GGUFFile) -> Graph:
    """The graph of a gemma4 file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox", listed=True)
    sliding = cfg.h.count("attention.sliding_window")
    slides = cfg.h.sliding_layers("attention.sliding_window_pattern", 6, cfg.n_layers)
    layers = [_layer(cfg, i, slide) for i, slide in enumerate(slides)]
    own = cfg.n_layers - cfg.h.count("attention.shared_kv_layers", 0, least=0)
    if own < cfg.n_layers and (own < 2 or slides[own - 2 : own] != [True, False]):
        raise cfg.h.wrong("attention.shared_kv_layers", "a sliding and a full layer before them")
    experts = experts_if_any(cfg.h, cfg.n_ff)
    p = cfg.h.count("embedding_length_per_layer_input", 0, least=0, most=MOST_WIDE)
    cap = cfg.h.multiplier("final_logit_softcapping")

    caches = {}
    x, table = embedding(b, cfg)
    x = b.scale(x, sqrt(cfg.n_embd), "inp_scaled")  # [T, D]
    extra = _layer_inputs(b, x, cfg, p) if p else None  # [T, L, P]
    factors = b.maybe_weight("rope_freqs.weight", (cfg.rope.rot // 2,))
    for i, c in enumerate(layers):
        window = sliding if slides[i] else None
        cache = i if i < own else own - 2 if slides[i] else own - 1
        with b.scope(f"blk.{i}"):
            h = norm(b, x, "attn_norm", c)
            q = _heads(b, h, "q", c.n_heads, c)  # [T, H, Dh]
            q = b.rope(q, None if slides[i] else factors, "q_rope", **c.rope.attrs())
            if cache == i:
                caches[f"blk.{i}"] = c.cache(window)
                part = "v" if b.has("attn_v.weight") else "k"
                v = b.rms_norm(_projected(b, h, part, c.n_kv_heads, c), None, c.eps, "v_norm")
                k = _heads(b, h, "k", c.n_kv_heads, c)  # [T, Hkv, Dh]
                k = b.rope(k, None if slides[i] else factors, "k_rope", **c.rope.attrs())
                a = b.attention(q, k, v, scale=1.0, window=window, cache=f"blk.{i}")
            else:
                for name in ("attn_k", "attn_v", "attn_k_norm"):
                    b.skip(f"{name}.weight")
                read = f"blk.{cache}"
                a = b.op("attention_again", q, scale=1.0, window=window, cache=read)
            y = norm(b, attention_out(b, a, c), "post_attention_norm", c)
            x = b.add(x, y, "attn_residual")
            y = _feed_forward(b, x, c, experts)
            x = b.add(x, norm(b, y, "post_ffw_norm", c), "ffn_residual")
            if extra is not None:
                x = b.add(x, _gated_input(b, x, extra, i, c), "input_residual")
            if b.has("layer_output_scale.weight"):
                x = b.scale(x, b.scalar("layer_output_scale.weight"), "out_scaled")
    if not cap:
        return finish(b, cfg, logits(b, x, table, cfg), caches)
    return finish(b, cfg, b.softcap(logits(b, x, table, cfg, "logits_raw"), cap, "logits"), caches)


def _layer(cfg: Config, i: int, slide: bool) -> Config:
    """What one layer has of its own: widths, key/value heads and rope."""
    h, end = cfg.h, "_swa" if slide else ""
    width = h.count(f"attention.key_length{end}", most=MOST_WIDE)
    if h.count(f"attention.value_length{end}", width, most=MOST_WIDE) != width:
        raise h.wrong(f"attention.value_length{end}", f"{width}, as keys have")
    rope = cfg.rope
    if slide:
        rot = h.count("rope.dimension_count_swa", width)
        if rot % 2 or rot > width:
            raise h.wrong("rope.dimension_count_swa", f"an even number up to {width}")
        rope = Rope("neox", rot, h.rope_base("rope.freq_base_swa", 10000.0))
    heads = h.each_layer("attention.head_count_kv", cfg.n_layers)[i]
    if heads < 1 or cfg.n_heads % heads:
        raise h.wrong("attention.head_count_kv", f"divisors of {cfg.n_heads}")
    n_ff = h.each_layer("feed_forward_length", cfg.n_layers, most=MOST_WIDE)[i]
    return replace(cfg, n_kv_heads=heads, n_ff=n_ff, head_dim=width, v_dim=width, rope=rope)


def _projected(b: Builder, h: Node, part: str, heads: int, cfg: Config) -> Node:
    y = project(b, h, f"attn_{part}", heads * cfg.head_dim, cfg.n_embd)
    return b.split_heads(y, heads, part)


def _heads(b: Builder, h: Node, part: str, heads: int, cfg: Config) -> Node:
    return norm(b, _projected(b, h, part, heads, cfg), f"attn_{part}_norm", cfg, cfg.head_dim)


def _feed_forward(b: Builder, x: Node, cfg: Config, experts: Experts | None) -> Node:
    """A gated feed-forward; in a mixture its norm and that of the experts, added."""
    y = gated_ffn(b, norm(b, x, "ffn_norm", cfg), cfg, "gelu_tanh")
    if experts is None or not b.has("ffn_gate_inp.weight"):
        return y
    scale = b.weight("ffn_gate_inp.scale", (cfg.n_embd,))
    r = b.scale(b.rms_norm(x, scale, cfg.eps, "router_norm"), cfg.n_embd**-0.5, "router_in")
    mixed = replace(experts, act="gelu_tanh")
    z = moe(b, norm(b, x, "pre_ffw_norm_2", cfg), cfg, mixed, r)
    y = norm(b, y, "post_ffw_norm_1", cfg)
    return b.add(y, norm(b, z, "post_ffw_norm_2", cfg), "ffn_out")


def _layer_inputs(b: Builder, x: Node, cfg: Config, p: int) -> Node:
    """Each layer's own input: an embedding of the token and a projection of the stream's start."""
    n, d = cfg.n_layers, cfg.n_embd
    e = b.embed(b.tokens(), b.weight("per_layer_token_embd.weight", (cfg.n_vocab, n * p)), "ple")
    e = b.split_heads(b.scale(e, sqrt(p), "ple_scaled"), n, "ple_layers")
    y = b.scale(project(b, x, "per_layer_model_proj", n * p, d), d**-0.5, "ple_proj")
    y = norm(b, b.split_heads(y, n, "ple_proj_layers"), "per_layer_proj_norm", cfg, p)
    return b.scale(b.add(y, e, "ple_sum"), 2**-0.5, "ple_in")


def _gated_input(b: Builder, x: Node, inputs: Node, i: int, cfg: Config) -> Node:
    """What a layer takes of its own input `[T, P]`: `[T, D]`."""
    mine = b.op("every_head", inputs, name="input", first=i, step=cfg.n_layers)
    mine = b.merge_heads(mine, "input_row")
    p = mine.type.shape[-1]  # type: ignore[union-attr]
    assert isinstance(p, int)
    gate = b.gelu_tanh(project(b, x, "inp_gate", p, cfg.n_embd), "inp_act")
    y = project(b, b.mul(gate, mine, "inp_glu"), "proj", cfg.n_embd, p)
    return norm(b, y, "post_norm", cfg)
