"""Blocks that families share, over the builder's vocabulary and GGUF's tensor names."""

from __future__ import annotations

from kinetic.families.config import Config, Experts
from kinetic.families.pooling import OUTPUTS, pooled
from kinetic.ir.build import Builder
from kinetic.ir.graph import CacheSpec, Graph, Node


def norm(b: Builder, x: Node, name: str, cfg: Config, width: int | None = None) -> Node:
    """`rms_norm` with the weight `NAME.weight`."""
    w = b.weight(f"{name}.weight", (width or cfg.n_embd,))
    return b.rms_norm(x, w, cfg.eps, name)


def project(b: Builder, x: Node, name: str, n: int, k: int) -> Node:
    """`linear` with the weight `NAME.weight [n, k]` and the bias `NAME.bias`, if there is one."""
    return b.linear(
        x, b.weight(f"{name}.weight", (n, k)), b.maybe_weight(f"{name}.bias", (n,)), name
    )


def qkv(b: Builder, x: Node, cfg: Config) -> tuple[Node, Node, Node]:
    """`[T, H, Dh]`, `[T, Hkv, Dh]`, `[T, Hkv, Dv]`, from three matrices or a fused one."""
    heads = (cfg.n_heads, cfg.n_kv_heads, cfg.n_kv_heads)
    sizes = (heads[0] * cfg.head_dim, heads[1] * cfg.head_dim, heads[2] * cfg.v_dim)
    fused, start, parts = b.has("attn_qkv.weight"), 0, []
    for part, count, size in zip("qkv", heads, sizes, strict=True):
        name = f"attn_{part}"
        if fused:
            y = _fused_part(b, x, name, sum(sizes), (start, size), cfg)
        else:
            y = project(b, x, name, size, cfg.n_embd)
        parts.append(b.split_heads(y, count, part))
        start += size
    return parts[0], parts[1], parts[2]


def _fused_part(
    b: Builder, x: Node, name: str, total: int, rows: tuple[int, int], cfg: Config
) -> Node:
    w = b.weight("attn_qkv.weight", (total, cfg.n_embd), rows=rows, label=f"{name}.weight")
    bias = None
    if b.has("attn_qkv.bias"):
        bias = b.weight("attn_qkv.bias", (total,), rows=rows, label=f"{name}.bias")
    return b.linear(x, w, bias, name)


def attention_out(b: Builder, heads: Node, cfg: Config) -> Node:
    """The heads `[T, H, Dv]` joined and projected to `[T, D]`."""
    return project(b, b.merge_heads(heads), "attn_output", cfg.n_embd, cfg.n_heads * cfg.v_dim)


def gated_ffn(
    b: Builder,
    x: Node,
    cfg: Config,
    act: str = "silu",
    *,
    kind: str = "",
    width: int | None = None,
    fused: bool = False,
) -> Node:
    """`ffn_down(act(ffn_gate x) * (ffn_up x))`: `[T, D]` to `[T, D]`.

    The `kind` is the end of the weights' names: `_shexp` for an expert that all rows share. In a
    `fused` one `ffn_up` holds the rows of the gate, then its own.
    """
    n_ff = width or cfg.n_ff
    if fused:
        shape = (2 * n_ff, cfg.n_embd)
        w = b.weight("ffn_up.weight", shape, rows=(0, n_ff), label="ffn_gate.weight")
        gate = b.linear(x, w, None, "ffn_gate")
        up = b.linear(x, b.weight("ffn_up.weight", shape, rows=(n_ff, n_ff)), None, "ffn_up")
    else:
        gate = project(b, x, f"ffn_gate{kind}", n_ff, cfg.n_embd)
        up = project(b, x, f"ffn_up{kind}", n_ff, cfg.n_embd)
    h = b.mul(b.op(act, gate, name=f"ffn_act{kind}"), up, f"ffn_glu{kind}")
    return project(b, h, f"ffn_down{kind}", cfg.n_embd, n_ff)


def moe(b: Builder, x: Node, cfg: Config, experts: Experts, router_x: Node | None = None) -> Node:
    """The chosen experts of each row, their weights made to sum to 1 unless the family keeps them,
    and the shared expert
    where there is one, gated if it has a gate: `[T, D]` to `[T, D]`. A bias `exp_probs_b` counts
    for the choice alone; biases and scales of experts are taken where the file has them. The
    router may read rows of its own, `router_x`."""
    e, f, d = experts.count, experts.width, cfg.n_embd
    router = b.weight("ffn_gate_inp.weight", (e, d))
    if b.has("ffn_gate_up_exps.weight"):  # of each expert the rows of the gate, then of the other
        fused = "ffn_gate_up_exps.weight"
        gate = b.weight(fused, (e, 2 * f, d), part=(0, f), label="ffn_gate_exps.weight")
        up = b.weight(fused, (e, 2 * f, d), part=(f, f), label="ffn_up_exps.weight")
    else:
        gate = b.weight("ffn_gate_exps.weight", (e, f, d))
        up = b.weight("ffn_up_exps.weight", (e, f, d))
    shapes = {"gate": (e, f), "up": (e, f), "down": (e, d)}
    y = b.op(
        "experts",
        x,
        router,
        gate,
        up,
        b.weight("ffn_down_exps.weight", (e, d, f)),
        b.maybe_weight("exp_probs_b.bias", (e,)),
        router_x,
        b.maybe_weight("ffn_gate_inp.bias", (e,)),
        *(b.maybe_weight(f"ffn_{n}_exps.bias", shape, plain=True) for n, shape in shapes.items()),
        b.maybe_weight("ffn_down_exps.scale", (e,)),
        name="ffn_moe",
        n_used=experts.n_used,
        act=experts.act,
        norm_weights=experts.norm_weights,
        router=experts.router,
        weight_scale=experts.weight_scale,
    )
    if not experts.shared:
        return y
    shared = gated_ffn(b, x, cfg, kind="_shexp", width=experts.shared)
    if b.has("ffn_gate_inp_shexp.weight"):
        gate = b.weight("ffn_gate_inp_shexp.weight", (cfg.n_embd,))
        shared = b.op("gate_rows", shared, x, gate, name="ffn_shexp_gated")
    return b.add(y, shared, "ffn_out")


def embedding(b: Builder, cfg: Config) -> tuple[Node, Node]:
    """The rows' embeddings `[T, D]`, and the table itself for a tied head."""
    table = b.weight("token_embd.weight", (cfg.n_vocab, cfg.n_embd))
    return b.embed(b.tokens(), table, "inp_embd"), table


def logits(
    b: Builder,
    x: Node,
    table: Node,
    cfg: Config,
    name: str = "logits",
    norm_name: str = "output_norm",
) -> Node:
    """The wanted rows `[R, D]`, normed, over the vocabulary: `[R, V]`; in a file with a pooling
    type each text's vector instead.

    The head is `output.weight`, or the embedding where a file has none (a tied head).
    """
    if cfg.h.pooling():
        # A head is of no use here, but a file may have one.
        b.maybe_weight("output.weight", (cfg.n_vocab, cfg.n_embd))
        return pooled(b, norm(b, x, norm_name, cfg), cfg)
    x = norm(b, b.take_outputs(x), norm_name, cfg)
    head = b.maybe_weight("output.weight", (cfg.n_vocab, cfg.n_embd)) or table
    return b.linear(x, head, b.maybe_weight("output.bias", (cfg.n_vocab,)), name)


def finish(b: Builder, cfg: Config, out: Node, caches: dict[str, CacheSpec]) -> Graph:
    """The graph, once every tensor and every setting of the file has been used.

    Raises: UnsupportedError.
    """
    kind, file, name = cfg.h.pooling(), cfg.h.file, "logits"
    if kind is not None:
        name = "scores" if kind == "rank" else "embedding"
        if not cfg.h.encoder and out.name not in OUTPUTS:
            cfg.h.refuse("pooling_type", "embeddings of a family that scales its outputs")
    meta = cfg.meta(caches)
    b.done()
    cfg.h.done()
    return b.graph(file.get_str("general.name", cfg.h.arch), meta, **{name: out})
