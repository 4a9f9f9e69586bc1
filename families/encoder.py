"""Blocks of encoders: layer norms, embeddings with positions, attention over whole texts."""

from __future__ import annotations

from math import sqrt

from kinetic.errors import UnsupportedError
from kinetic.families.common import attention_out, embedding, qkv
from kinetic.families.config import Config
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile, display_path
from kinetic.ir.graph import CacheSpec, Node

LAYER_NORM_EPS = "attention.layer_norm_epsilon"


def read_encoder(file: GGUFFile, *, eps_key: str = LAYER_NORM_EPS) -> Config:
    """The configuration of a model whose rows see their whole text.

    Raises: ModelFileError; UnsupportedError for a file that asks for causal attention.
    """
    cfg = Config.read(file, rope_kind="neox", encoder=True, eps_key=eps_key)
    if cfg.h.flag("attention.causal", False):
        raise UnsupportedError(
            f"{display_path(file.path)}: {cfg.h.arch}.attention.causal is set, but models of this "
            "architecture see whole texts; convert the model again"
        )
    return cfg


def layer_norm(b: Builder, x: Node, name: str, cfg: Config) -> Node:
    """`layer_norm` with the weight `NAME.weight` and the bias `NAME.bias`."""
    w = b.weight(f"{name}.weight", (cfg.n_embd,))
    bias = b.maybe_weight(f"{name}.bias", (cfg.n_embd,))
    return b.op("layer_norm", x, w, bias, name=name, eps=cfg.eps)


def embedded(b: Builder, cfg: Config, *, table: bool) -> Node:
    """Tokens, the first token type and, from a `table`, positions, normed: `[T, D]`.

    All rows are of the first type: a text here has one part.
    """
    x, _ = embedding(b, cfg)
    if b.has("token_types.weight"):
        file = cfg.h.file
        shape = (file.tensors["token_types.weight"].shape[0], cfg.n_embd)
        first = b.weight("token_types.weight", shape, rows=(0, 1), label="token_type")
        b.weight("token_types.weight", shape)  # the others are of parts that a text here lacks
        x = b.op("add_row", x, first, name="inp_typed")
    if table:
        w = b.weight("position_embd.weight", (cfg.n_ctx, cfg.n_embd))
        x = b.add(x, b.op("embed_positions", w, name="inp_positions"), "inp_placed")
    return layer_norm(b, x, "token_embd_norm", cfg)


def attended(
    b: Builder, x: Node, cfg: Config, layer: int, caches: dict[str, CacheSpec], *, turns: bool
) -> Node:
    """Attention of each row over its text, projected: `[T, D]` to `[T, D]`."""
    name = f"blk.{layer}"
    caches[name] = cfg.cache()
    q, k, v = qkv(b, x, cfg)  # [T, H, Dh], three times
    if turns:
        q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
        k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
    a = b.op("text_attention", q, k, v, name="attention", scale=1 / sqrt(cfg.head_dim), cache=name)
    return attention_out(b, a, cfg)
