"""What the tiny models of later attention decoders hold that the first ones do not."""

from __future__ import annotations

from typing import Protocol

import numpy as np

DECODERS = ("gemma4", "smollm3", "phi3", "gpt-oss", "mistral3", "glm4", "qwen3vl", "qwen2moe")
"""In the order in which they joined `ARCHS`."""
FUSED_FFN = ("phi3", "glm4")
GEMMA4_LAYERS, GEMMA4_SHARED = 4, 2
"""A sliding and a full layer, then one of each that reads their caches."""

Shapes = dict[str, tuple[int, ...]]


class Size(Protocol):
    """The sizes that these parts depend on: `tiny_models.Dims`."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    window: int


def is_plain(name: str) -> bool:
    """Whether files keep this tensor in F32 whatever its shape."""
    return name.endswith("_exps.bias")


def layers(arch: str, s: Size) -> int:
    """How many layers the model has."""
    return GEMMA4_LAYERS if arch == "gemma4" else s.n_layers


def model_shapes(arch: str, s: Size) -> Shapes:
    """Tensors outside of the layers."""
    if arch == "phi3":
        half = (s.head_dim // 2,)
        return {"rope_factors_long.weight": half, "rope_factors_short.weight": half}
    if arch == "gemma4":
        width = GEMMA4_LAYERS * s.n_embd
        return {
            "rope_freqs.weight": (s.head_dim,),
            "per_layer_token_embd.weight": (s.n_vocab, width),
            "per_layer_model_proj.weight": (width, s.n_embd),
            "per_layer_proj_norm.weight": (s.n_embd,),
        }
    return {}


def layer_shapes(arch: str, s: Size, i: int, usual: Shapes) -> Shapes:
    """A layer's tensors, given those of Llama."""
    d, f, e = s.n_embd, s.n_ff, 4
    if arch == "gemma4":
        return _gemma4(s, i)
    if arch in FUSED_FFN:
        usual = {name: shape for name, shape in usual.items() if name != "ffn_gate.weight"}
        usual["ffn_up.weight"] = (2 * f, d)
    if arch == "phi3":
        rows = [usual.pop(f"attn_{part}.weight")[0] for part in "qkv"]
        usual["attn_qkv.weight"] = (sum(rows), d)
    if arch == "glm4":
        usual |= {"post_attention_norm.weight": (d,), "post_ffw_norm.weight": (d,)}
    if arch == "qwen3vl":
        usual |= {"attn_q_norm.weight": (s.head_dim,), "attn_k_norm.weight": (s.head_dim,)}
    if arch == "gpt-oss":
        for name in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
            usual.pop(f"{name}.weight")
        usual |= {f"attn_{p}.bias": usual[f"attn_{p}.weight"][:1] for p in (*"qkv", "output")}
        usual |= {"post_attention_norm.weight": (d,), "attn_sinks.weight": (s.n_heads,)}
        usual |= {"ffn_gate_inp.weight": (e, d), "ffn_gate_inp.bias": (e,)}
        for part, rows, columns in (("gate", f, d), ("up", f, d), ("down", d, f)):
            usual[f"ffn_{part}_exps.weight"] = (e, rows, columns)
            usual[f"ffn_{part}_exps.bias"] = (e, rows)
    return usual


def _gemma4(s: Size, i: int) -> Shapes:
    """A layer of every kind: the second has experts, no `attn_v` and heads twice as wide."""
    d, slides, own = s.n_embd, i % 2 == 0, i < GEMMA4_LAYERS - GEMMA4_SHARED
    width = s.head_dim if slides else 2 * s.head_dim
    q, kv = s.n_heads * width, (s.n_kv_heads if slides else 1) * width
    f, e = s.n_ff, 4
    names = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "post_norm")
    out: Shapes = {f"{name}.weight": (d,) for name in names}
    out |= {"attn_q.weight": (q, d), "attn_q_norm.weight": (width,), "attn_output.weight": (d, q)}
    if own:
        out |= {"attn_k.weight": (kv, d), "attn_k_norm.weight": (width,)}
    if own and slides:
        out["attn_v.weight"] = (kv, d)
    out |= {"ffn_gate.weight": (f, d), "ffn_up.weight": (f, d), "ffn_down.weight": (d, f)}
    out |= {"inp_gate.weight": (d, d), "proj.weight": (d, d), "layer_output_scale.weight": (1,)}
    if i == 1:
        out |= {"ffn_gate_inp.weight": (e, d), "ffn_gate_inp.scale": (d,)}
        out |= {f"{n}.weight": (d,) for n in ("pre_ffw_norm_2", "post_ffw_norm_1")}
        out |= {"post_ffw_norm_2.weight": (d,), "ffn_down_exps.scale": (e,)}
        out |= {"ffn_gate_up_exps.weight": (e, 2 * f, d), "ffn_down_exps.weight": (e, d, f)}
    return out


def hyper(arch: str, s: Size) -> dict[str, object]:
    """The keys that these families have besides the usual ones."""
    keys: dict[str, object] = {}
    if arch == "gemma4":
        n, width = GEMMA4_LAYERS, 2 * s.head_dim
        keys = {
            "block_count": n,
            "attention.head_count_kv": np.array([s.n_kv_heads, 1] * (n // 2), np.int32),
            "feed_forward_length": np.array([s.n_ff] * n, np.int32),
            "attention.key_length": width,
            "attention.value_length": width,
            "attention.key_length_swa": s.head_dim,
            "attention.value_length_swa": s.head_dim,
            "rope.dimension_count": width,
            "rope.dimension_count_swa": s.head_dim,
            "rope.freq_base_swa": 10000.0,
            "attention.sliding_window": s.window,
            "attention.sliding_window_pattern": np.array([True, False] * (n // 2)),
            "attention.shared_kv_layers": GEMMA4_SHARED,
            "embedding_length_per_layer_input": s.n_embd,
            "final_logit_softcapping": 20.0,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": s.n_ff,
        }
    if arch == "phi3":
        keys = {"rope.scaling.original_context_length": 512, "rope.scaling.attn_factor": 1.19}
    if arch == "gpt-oss":
        keys = {
            "attention.sliding_window": s.window,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": s.n_ff,
        }
    if arch == "mistral3":
        keys = {
            "attention.temperature_scale": 0.25,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_log_multiplier": 1.0,
        }
    if arch == "glm4":
        keys = {"rope.dimension_count": s.head_dim // 2}
    if arch == "qwen3vl":
        sections = [*[-(-s.head_dim // 6)] * 3, 0]
        keys = {"rope.dimension_sections": np.array(sections, np.int32), "n_deepstack_layers": 2}
    return {f"{arch}.{key}": value for key, value in keys.items()}
