"""Write tiny seeded encoders and rerankers, as `tiny_models` does for decoders.

tiny_encoder("bert", path)                              # mean pooling
tiny_encoder("bert", path, pooling=4, formats="F16")    # a reranker with one score
tiny_encoder("gemma-embedding", path, dense=True)
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
from support.gguf_writer import Tensor, write_gguf
from support.tiny_models import noise, random_weight, tokenizer

from kinetic.ir.quant import FORMATS

ENCODERS = ("bert", "nomic-bert", "gemma-embedding")
D, FF, HEADS, HEAD_DIM, LAYERS, VOCAB, CTX = 64, 96, 4, 16, 2, 320, 128
MEAN, CLS, LAST, RANK = 1, 2, 3, 4


def shapes(arch: str, *, pooling: int = MEAN, dense: bool = False) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its GGUF name."""
    gemma = arch == "gemma-embedding"
    kv = D // 2 if gemma else D
    out: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, D)}
    norms = ["output_norm"] if gemma else ["token_embd_norm"]
    if not gemma:
        out["token_types.weight"] = (2, D)
    if arch == "bert":
        out["position_embd.weight"] = (CTX, D)
    for i in range(LAYERS):
        p = f"blk.{i}."
        if arch == "nomic-bert":
            out[p + "attn_qkv.weight"] = (3 * D, D)
        else:
            out |= {p + f"attn_{n}.weight": (w, D) for n, w in (("q", D), ("k", kv), ("v", kv))}
        out |= {p + "attn_output.weight": (D, D), p + "ffn_up.weight": (FF, D)}
        out[p + "ffn_down.weight"] = (D, FF)
        if arch != "bert":
            out[p + "ffn_gate.weight"] = (FF, D)
        if arch == "bert":
            widths = {"attn_q": D, "attn_k": D, "attn_v": D, "attn_output": D}
            widths |= {"ffn_up": FF, "ffn_down": D}
            out |= {p + f"{name}.bias": (width,) for name, width in widths.items()}
        if gemma:
            out |= {p + f"attn_{n}_norm.weight": (HEAD_DIM,) for n in "qk"}
            norms += [p + n for n in ("attn_norm", "ffn_norm")]
            norms += [p + n for n in ("post_attention_norm", "post_ffw_norm")]
        else:
            norms += [p + "attn_output_norm", p + "layer_output_norm"]
    out |= {f"{n}.weight": (D,) for n in norms}
    if not gemma:
        out |= {f"{n}.bias": (D,) for n in norms}
    if dense:
        out |= {"dense_2.weight": (2 * D, D), "dense_3.weight": (D, 2 * D)}
    if pooling == RANK:
        out |= {"cls.weight": (D, D), "cls.bias": (D,)}
        out |= {"cls.output.weight": (1, D), "cls.output.bias": (1,)}
    return out


def keys(arch: str, *, pooling: int = MEAN, dense: bool = False) -> dict[str, object]:
    """The model's own keys and its tokenizer."""
    gemma = arch == "gemma-embedding"
    own: dict[str, object] = {
        "context_length": CTX,
        "embedding_length": D,
        "block_count": LAYERS,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.layer_norm_rms_epsilon" if gemma else "attention.layer_norm_epsilon": 1e-6,
        "pooling_type": pooling,
    }
    if not gemma:
        own["attention.causal"] = False
    if arch == "nomic-bert":
        own["rope.freq_base"] = 1000.0
    if gemma:
        own |= {"attention.head_count_kv": HEADS // 2, "attention.key_length": HEAD_DIM}
        own |= {"attention.value_length": HEAD_DIM, "attention.sliding_window": 10}
        own |= {"attention.sliding_window_pattern": 2, "rope.freq_base": 1e6}
    if dense:
        own |= {"dense_2_feat_in": D, "dense_2_feat_out": 2 * D}
        own |= {"dense_3_feat_in": 2 * D, "dense_3_feat_out": D}
    found: dict[str, object] = {f"{arch}.{key}": value for key, value in own.items()}
    found |= {"general.architecture": arch, "general.name": f"tiny {arch}"}
    return found | (tokenizer("gemma3", VOCAB) if gemma else wordpiece())


def tiny_encoder(
    arch: str,
    path: str | Path,
    *,
    seed: int = 0,
    formats: str = "F32",
    pooling: int = MEAN,
    dense: bool = False,
    metadata: dict[str, object] | None = None,
) -> Path:
    """Write the model and return its path; `metadata` changes keys (None removes one)."""
    rng = np.random.default_rng([seed, 77, ENCODERS.index(arch)])
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes(arch, pooling=pooling, dense=dense).items():
        plain = len(shape) == 1 or name.startswith(("token_types", "position_embd"))
        fmt = FORMATS["F32" if plain else formats]
        if len(shape) == 1:
            base = 0.0 if name.endswith("bias") else 1.0
            data = (base + 0.1 * noise(rng, shape)).astype("<f4").tobytes()
        else:
            data = random_weight(fmt, shape, rng, 1.0 / sqrt(shape[-1])).tobytes()
        tensors[name] = (shape, fmt.ggml_id, data)
    found = keys(arch, pooling=pooling, dense=dense) | dict(metadata or {})
    return write_gguf(path, {k: v for k, v in found.items() if v is not None}, tensors)


def wordpiece() -> dict[str, object]:
    """Letters alone and inside words, some syllables, Hangul and Devanagari parts."""
    alone = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!?-'"]
    parts = [a + b for a in "theaoinsrdl" for b in "eaoitnshr"]
    parts += ["\u1112", "\u1161", "\u11ab", "\u0928", "\u093f", "\u092f", "\u093e"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [f"\u2581{t}" for t in (*alone, *parts)] + [*alone[:26], *parts]
    tokens = tokens[:VOCAB] + [f"[unused{i}]" for i in range(VOCAB - len(tokens))]
    types = [3 if t.startswith("[") else 1 for t in tokens]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "bert-bge",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }
