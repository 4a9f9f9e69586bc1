"""Recurrent blocks that families share: short convolutions, Mamba-2, gated DeltaNet.

A fused matrix is taken apart by its rows, so each part is a product of its own and no value
has to be cut up. What a block keeps of a sequence is declared in `caches` as it is built.
"""

from __future__ import annotations

from math import sqrt

from kinetic.families.common import norm, project
from kinetic.families.config import SSM, Config
from kinetic.ir.build import Builder, width
from kinetic.ir.graph import CacheSpec, Node

Caches = dict[str, CacheSpec]


def conv(
    b: Builder,
    x: Node,
    tensor: str,
    part: str,
    taps: int,
    span: tuple[int, int, int],
    caches: Caches,
    act: str | None = None,
) -> Node:
    """The causal convolution of `x [T, C]` with rows of `TENSOR.weight`, then `act`.

    `span` is the first row, their number and the rows of the whole tensor.
    """
    start, count, total = span
    label, rows = f"{tensor}_{part}" if part else tensor, (start, count)
    w = b.weight(f"{tensor}.weight", (total, taps), rows=rows, label=f"{label}.weight", plain=True)
    bias = None
    if b.has(f"{tensor}.bias"):
        bias = b.weight(f"{tensor}.bias", (total,), rows=rows, label=f"{label}.bias")
    caches[b.full(label)] = CacheSpec("state", 1, taps - 1, width(x))
    return b.op("short_conv", x, w, bias, name=label, act=act, cache=b.full(label))


def short_conv_block(b: Builder, x: Node, cfg: Config, taps: int, caches: Caches) -> Node:
    """LFM2's block, `[T, D]` to `[T, D]`: `out_proj(c * conv(b * x))`."""
    d = cfg.n_embd
    parts = []
    for i, name in enumerate("bcx"):
        label, rows = f"shortconv.{name}", (i * d, d)
        w = b.weight("shortconv.in_proj.weight", (3 * d, d), rows=rows, label=f"{label}.weight")
        parts.append(b.linear(x, w, None, label))  # [T, D]
    gate_in, gate_out, values = parts
    h = b.mul(gate_in, values, "shortconv.bx")
    h = conv(b, h, "shortconv.conv", "", taps, (0, d, d), caches)
    return project(b, b.mul(gate_out, h, "shortconv.gated"), "shortconv.out_proj", d, d)


def mamba2(b: Builder, x: Node, cfg: Config, ssm: SSM, caches: Caches) -> Node:
    """Mamba-2, `[T, D]` to `[T, D]`. *Source*: Dao and Gu, 2024, "Transformers are SSMs"."""
    inner, shared = ssm.inner, ssm.groups * ssm.state
    sizes = {"z": inner, "x": inner, "B": shared, "C": shared, "dt": ssm.heads}
    total, start, parts = sum(sizes.values()), 0, {}
    for name, size in sizes.items():
        label, shape = f"ssm_{name}", (total, cfg.n_embd)
        w = b.weight("ssm_in.weight", shape, rows=(start, size), label=f"{label}.weight")
        parts[name] = b.linear(x, w, None, label)
        if name in "xBC":
            span = (start - inner, size, inner + 2 * shared)
            y = conv(b, parts[name], "ssm_conv1d", name, ssm.taps, span, caches, "silu")
            heads = ssm.heads if name == "x" else ssm.groups
            parts[name] = b.split_heads(y, heads, f"{name}_heads")
        start += size
    dt = b.op("softplus", parts["dt"], b.weight("ssm_dt.bias", (ssm.heads,)), name="dt")
    decay = b.op("decay", dt, b.weight("ssm_a", (ssm.heads, 1), plain=True))
    skip = b.weight("ssm_d", (ssm.heads, 1), plain=True)
    name = b.full("ssm")
    caches[name] = CacheSpec("state", ssm.heads, ssm.state, ssm.width)
    y = b.op("ssm_scan", parts["x"], dt, decay, parts["B"], parts["C"], skip, cache=name)
    y = b.mul(b.silu(parts["z"], "z_act"), b.merge_heads(y), "ssm_gated")  # [T, inner]
    if b.has("ssm_norm.weight"):
        w = b.weight("ssm_norm.weight", (ssm.groups, inner // ssm.groups), plain=True)
        y = b.rms_norm(b.split_heads(y, ssm.groups), w, cfg.eps, "ssm_norm")
        y = b.merge_heads(y, "ssm_normed")
    return project(b, y, "ssm_out", cfg.n_embd, inner)


def delta_net(b: Builder, x: Node, cfg: Config, ssm: SSM, caches: Caches) -> Node:
    """Gated DeltaNet, `[T, D]` to `[T, D]`: `groups` key heads, `heads` value heads.

    *Source*: Yang, Kautz and Hatamizadeh, 2025, "Gated Delta Networks".
    """
    keys, inner = ssm.groups * ssm.state, ssm.inner
    total, start, parts = 2 * keys + inner, 0, []
    for name, size, heads in (
        ("q", keys, ssm.groups),
        ("k", keys, ssm.groups),
        ("v", inner, ssm.heads),
    ):
        label, shape = f"attn_{name}", (total, cfg.n_embd)
        w = b.weight("attn_qkv.weight", shape, rows=(start, size), label=f"{label}.weight")
        y = b.linear(x, w, None, label)
        y = conv(b, y, "ssm_conv1d", name, ssm.taps, (start, size, total), caches, "silu")
        parts.append(b.split_heads(y, heads, name))
        start += size
    q, k, v = parts  # [T, Hk, S], [T, Hk, S], [T, H, S]
    q, k = (b.op("l2_norm", y, name=f"{y.name.split('.')[-1]}_norm", eps=cfg.eps) for y in (q, k))
    beta = b.op("sigmoid", project(b, x, "ssm_beta", ssm.heads, cfg.n_embd), name="beta")
    alpha = project(b, x, "ssm_alpha", ssm.heads, cfg.n_embd)
    dt = b.op("softplus", alpha, b.weight("ssm_dt.bias", (ssm.heads,)), name="dt")
    decay = b.op("decay", dt, b.weight("ssm_a", (ssm.heads,)))
    name = b.full("delta")
    caches[name] = CacheSpec("state", ssm.heads, ssm.state, ssm.width)
    scale = 1 / sqrt(ssm.state)
    y = b.op("delta_rule", q, k, v, beta, decay, scale=scale, cache=name)  # [T, H, S]
    y = b.merge_heads(norm(b, y, "ssm_norm", cfg, ssm.width))
    z = project(b, x, "attn_gate", inner, cfg.n_embd)
    return project(b, b.mul(b.silu(z, "z_act"), y, "delta_gated"), "ssm_out", cfg.n_embd, inner)
