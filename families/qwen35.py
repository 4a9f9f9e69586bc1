"""Qwen 3.5: gated DeltaNet in most layers, gated attention in every fourth.

Per layer: norm, one of the two, norm, SwiGLU; each added to the residual. Attention computes a
gate beside each query head and multiplies the heads by its sigmoid; a part of each head turns.
`qwen35moe` has experts in every layer, and a gated one that all rows share. The blocks at the
end that predict further tokens (MTP) are checked but not built: they are for drafting.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from kinetic.families.common import embedding, finish, gated_ffn, logits, moe, norm, project
from kinetic.families.config import SSM, Config, Experts
from kinetic.families.recurrent import delta_net
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph, Node


def build(file: GGUFFile) -> Graph:
    """The graph of a qwen35 or qwen35moe file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    ssm = SSM.read(cfg.h)
    if ssm.width != ssm.state:
        raise cfg.h.wrong("ssm.inner_size", f"{ssm.state} for each of {ssm.heads} heads")
    if cfg.h.has("rope.dimension_sections"):  # of images' positions; a text's are all equal
        cfg.h.each_layer("rope.dimension_sections", 3)
    period = cfg.h.count("full_attention_interval", 4)
    experts = Experts.read(cfg.h, cfg.n_ff) if cfg.h.arch == "qwen35moe" else None
    n_mtp = cfg.h.count("nextn_predict_layers", 0, least=0, most=cfg.n_layers - 1)
    cfg = replace(cfg, n_layers=cfg.n_layers - n_mtp)

    caches: dict[str, CacheSpec] = {}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            h = norm(b, x, "attn_norm", cfg)
            if (i + 1) % period:
                y = delta_net(b, h, cfg, ssm, caches)
            else:
                caches[f"blk.{i}"] = cfg.cache()
                y = gated_attention(b, h, cfg, f"blk.{i}")
            x = b.add(x, y, "attn_residual")
            h = norm(b, x, "post_attention_norm", cfg)
            y = moe(b, h, cfg, experts) if experts else gated_ffn(b, h, cfg)
            x = b.add(x, y, "ffn_residual")
    return finish(b, cfg, logits(b, x, table, cfg), caches)


def gated_attention(b: Builder, x: Node, cfg: Config, cache: str) -> Node:
    """Attention whose heads are multiplied by a sigmoid gate: `[T, D]` to `[T, D]`."""
    heads, kv, dh = cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
    both = b.split_heads(project(b, x, "attn_q", 2 * heads * dh, cfg.n_embd), 2 * heads, "qg")
    q, gate = (b.op("every_head", both, name=n, first=i, step=2) for i, n in enumerate(("q", "g")))
    k = b.split_heads(project(b, x, "attn_k", kv * dh, cfg.n_embd), kv, "k")
    v = b.split_heads(project(b, x, "attn_v", kv * cfg.v_dim, cfg.n_embd), kv, "v")
    q = norm(b, q, "attn_q_norm", cfg, dh)  # [T, H, Dh]
    k = norm(b, k, "attn_k_norm", cfg, dh)  # [T, Hkv, Dh]
    q = b.rope(q, None, "q_rope", **cfg.rope.attrs())
    k = b.rope(k, None, "k_rope", **cfg.rope.attrs())
    a = b.attention(q, k, v, scale=1 / sqrt(dh), cache=cache)
    gate = b.op("sigmoid", b.merge_heads(gate, "gate"), name="gate_act")
    a = b.mul(gate, b.merge_heads(a), "attn_gated")
    return project(b, a, "attn_output", cfg.n_embd, heads * cfg.v_dim)
