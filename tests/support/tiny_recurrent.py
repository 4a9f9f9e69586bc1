"""What the tiny models of recurrent families hold besides attention: tensors and keys."""

from __future__ import annotations

from typing import Protocol

import numpy as np

RECURRENT = ("lfm2", "lfm2moe", "lfm3", "granitehybrid", "falcon-h1", "qwen35", "qwen35moe")
"""In the order in which they joined `ARCHS`. Every second layer has attention."""
DELTA = ("qwen35", "qwen35moe")
MAMBA = ("granitehybrid", "falcon-h1")
PLAIN = ("conv1d.weight", "conv.weight", "ssm_a", "ssm_d", "ssm_norm.weight")
"""Ends of the names of matrices that files keep in F32."""
HEADS, TAPS = 4, 4

Shapes = dict[str, tuple[int, ...]]


class Size(Protocol):
    """The sizes that these parts depend on: `tiny_models.Dims`."""

    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int


def is_plain(name: str) -> bool:
    """Whether files keep this tensor in F32 whatever its shape."""
    return name.endswith(PLAIN)


def has_attention(arch: str, layer: int) -> bool:
    """Whether a layer has the usual attention."""
    return arch not in RECURRENT or arch == "falcon-h1" or layer % 2 == 1


def layer_shapes(arch: str, s: Size, layer: int) -> Shapes:
    """The tensors of a layer's recurrent block, none in layers without."""
    d = s.n_embd
    if arch in ("lfm2", "lfm2moe", "lfm3") and layer % 2 == 0:
        return {
            "shortconv.in_proj.weight": (3 * d, d),
            "shortconv.conv.weight": (d, 3),
            "shortconv.out_proj.weight": (d, d),
        }
    if arch in DELTA and layer % 2 == 0:
        keys, values = d // 2, d
        return {
            "attn_qkv.weight": (2 * keys + values, d),
            "attn_gate.weight": (values, d),
            "ssm_conv1d.weight": (2 * keys + values, TAPS),
            "ssm_beta.weight": (HEADS, d),
            "ssm_alpha.weight": (HEADS, d),
            "ssm_dt.bias": (HEADS,),
            "ssm_a": (HEADS,),
            "ssm_norm.weight": (values // HEADS,),
            "ssm_out.weight": (d, values),
        }
    if arch == "falcon-h1" or (arch == "granitehybrid" and layer % 2 == 0):
        inner, shared, groups = 2 * d, n_groups(arch) * d // 4, n_groups(arch)
        return {
            "ssm_in.weight": (2 * inner + 2 * shared + HEADS, d),
            "ssm_conv1d.weight": (inner + 2 * shared, TAPS),
            "ssm_conv1d.bias": (inner + 2 * shared,),
            "ssm_dt.bias": (HEADS,),
            "ssm_a": (HEADS, 1),
            "ssm_d": (HEADS, 1),
            "ssm_norm.weight": (groups, inner // groups),
            "ssm_out.weight": (d, inner),
        }
    return {}


def n_groups(arch: str) -> int:
    """Groups of heads that share their inputs."""
    return 1 if arch == "falcon-h1" else 2


def hyper(arch: str, s: Size) -> dict[str, object]:
    """The keys that a recurrent family has besides those of every decoder."""
    if arch not in RECURRENT:
        return {}
    keys: dict[str, object] = {}
    if arch not in (*DELTA, "falcon-h1"):
        by_layer = [s.n_kv_heads if has_attention(arch, i) else 0 for i in range(s.n_layers)]
        keys["attention.head_count_kv"] = np.array(by_layer, np.int32)
    if arch in ("lfm2", "lfm2moe", "lfm3"):
        keys["shortconv.l_cache"] = 3
    if arch == "lfm2moe":
        keys["leading_dense_block_count"], keys["expert_gating_func"] = 1, 2
    if arch in DELTA:
        keys["full_attention_interval"] = 2
        keys["rope.dimension_count"] = s.head_dim // 2
        keys["rope.dimension_sections"] = np.array([s.head_dim // 8, s.head_dim // 8, 0, 0])
    if arch in (*DELTA, *MAMBA):
        keys["ssm.conv_kernel"], keys["ssm.time_step_rank"] = TAPS, HEADS
        keys["ssm.state_size"] = s.n_embd // 4
        keys["ssm.inner_size"] = s.n_embd if arch in DELTA else 2 * s.n_embd
        keys["ssm.group_count"] = n_groups(arch)
    return {f"{arch}.{key}": value for key, value in keys.items()}
