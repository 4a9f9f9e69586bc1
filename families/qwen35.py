"""Qwen 3.5: gated DeltaNet in most layers, gated attention in every fourth.

Per layer: norm, one of the two, norm, SwiGLU; each added to the residual. Attention computes a
gate beside each query head and multiplies the heads by its sigmoid; a part of each head turns.
`qwen35moe` has experts in every layer, and a gated one that all rows share.

A block at the end may predict the token after the next one (MTP): `build_draft` is its graph. It
reads a token and what the model made of the row before it (output `hidden`, zeros at the first).
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
    b, cfg, n_mtp = _read(file)
    ssm = SSM.read(cfg.h)
    if ssm.width != ssm.state:
        raise cfg.h.wrong("ssm.inner_size", f"{ssm.state} for each of {ssm.heads} heads")
    period = cfg.h.count("full_attention_interval", 4)
    experts = _experts(cfg)

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
    if not n_mtp or cfg.h.pooling():
        return finish(b, cfg, logits(b, x, table, cfg), caches)
    hidden = norm(b, x, "output_norm", cfg)  # [T, D], for the drafting block
    out = b.linear(b.take_outputs(hidden), _head(b, cfg) or table, None, "logits")
    for i in range(n_mtp):  # its tensors are checked here, its graph is another
        _draft(b, cfg, cfg.n_layers + i, table, experts)
    graph = finish(b, cfg, out, caches)
    return graph.with_outputs({**graph.outputs, "hidden": hidden})


def build_draft(file: GGUFFile) -> Graph | None:
    """The graph of the first block that predicts a further token; None in a file without.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg, n_mtp = _read(file)
    if not n_mtp:
        return None
    table = b.weight("token_embd.weight", (cfg.n_vocab, cfg.n_embd))
    cache = f"blk.{cfg.n_layers}"
    hidden, out = _draft(b, cfg, cfg.n_layers, table, _experts(cfg))
    name = f"{file.get_str('general.name', cfg.h.arch)} draft"
    return b.graph(name, cfg.meta({cache: cfg.cache()}), logits=out, hidden=hidden)


def _read(file: GGUFFile) -> tuple[Builder, Config, int]:
    """A builder, the configuration of the layers before the drafting blocks, their number."""
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")
    if cfg.h.has("rope.dimension_sections"):  # of images' positions; a text's are all equal
        cfg.h.each_layer("rope.dimension_sections", 3)
    n_mtp = cfg.h.count("nextn_predict_layers", 0, least=0, most=cfg.n_layers - 1)
    return b, replace(cfg, n_layers=cfg.n_layers - n_mtp), n_mtp


def _experts(cfg: Config) -> Experts | None:
    return Experts.read(cfg.h, cfg.n_ff) if cfg.h.arch == "qwen35moe" else None


def _head(b: Builder, cfg: Config) -> Node | None:
    return b.maybe_weight("output.weight", (cfg.n_vocab, cfg.n_embd))


def _draft(
    b: Builder, cfg: Config, layer: int, table: Node, experts: Experts | None
) -> tuple[Node, Node]:
    """The drafting block: its own hidden vector `[T, D]` and logits `[R, V]`."""
    d, v = cfg.n_embd, cfg.n_vocab
    main = _head(b, cfg) or table
    with b.scope(f"blk.{layer}"):
        own = b.maybe_weight("nextn.embed_tokens.weight", (v, d)) or table
        token = norm(b, b.embed(b.tokens(), own, "token"), "nextn.enorm", cfg)
        before = norm(b, b.op("hidden", width=d, name="before"), "nextn.hnorm", cfg)
        both = b.op("concat", token, before, name="both")  # [T, 2 D]
        x = project(b, both, "nextn.eh_proj", d, 2 * d)
        y = gated_attention(b, norm(b, x, "attn_norm", cfg), cfg, f"blk.{layer}")
        x = b.add(x, y, "attn_residual")
        h = norm(b, x, "post_attention_norm", cfg)
        y = moe(b, h, cfg, experts) if experts else gated_ffn(b, h, cfg)
        x = b.add(x, y, "ffn_residual")
        own_norm = b.maybe_weight("nextn.shared_head_norm.weight", (d,))
        head = b.maybe_weight("nextn.shared_head_head.weight", (v, d)) or main
    hidden = b.rms_norm(x, own_norm or b.weight("output_norm.weight", (d,)), cfg.eps, "hidden")
    return hidden, b.linear(b.take_outputs(hidden, "draft_outputs"), head, None, "draft_logits")


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
