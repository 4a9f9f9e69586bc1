"""Write tiny seeded models of every family, in any declared weight format.

    tiny_model("llama", tmp_path / "m.gguf")                       # all matrices Q4_K
    tiny_model("gemma3", path, seed=3, formats="F32", n_embd=64, n_ff=96, head_dim=16)
    tiny_model("qwen2", path, formats={"attn_v": "Q6_K", "": "Q4_0"})

The weights are noise of about the size that training leaves, so activations stay near 1 and
logits spread over a few units. Each file holds a small working tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, sqrt
from pathlib import Path

import numpy as np
from support import tiny_decoders, tiny_recurrent
from support.block_scales import put_d
from support.gguf_writer import Tensor, write_gguf
from support.tiny_decoders import DECODERS
from support.tiny_recurrent import DELTA, RECURRENT, has_attention, is_plain

from kinetic.ir.quant import FORMATS, decode
from kinetic.ir.quant.base import BlockFormat, Format

FIRST = ("llama", "qwen2", "qwen3", "gemma3")
"""Families whose words are frozen in every format; of the others, in one format of a kind."""
FEW_FORMATS = ("F32", "Q8_0", "Q4_K")
MIXTURES = ("qwen3moe", "granitemoe", "ernie4_5-moe", "lfm2moe", "qwen35moe", "qwen2moe")
POST_NORM = ("olmo2", "exaone4")
"""Norms stand after each half of a layer, not before."""
HEAD_NORM = (
    *("qwen3", "gemma3", "qwen3moe", "exaone4", "hunyuan-dense"),
    *("lfm2", "lfm2moe", "lfm3", *DELTA),
)
SHARED_EXPERT = ("granitemoe", "ernie4_5-moe", "qwen35moe", "qwen2moe")
DENSE_FIRST = ("ernie4_5-moe", "lfm2moe")
"""Mixtures whose first layer has a plain feed-forward."""
ARCHS = (
    *FIRST,
    "qwen3moe",
    "granite",
    "granitemoe",
    "ernie4_5",
    "ernie4_5-moe",
    "olmo2",
    "exaone4",
    "hunyuan-dense",
    *RECURRENT,
    *DECODERS,
)
"""A new family goes to the end: its place seeds its weights."""


@dataclass(frozen=True)
class Dims:
    """Sizes of a tiny model; rows are multiples of 256 so that every format fits."""

    n_layers: int = 2
    n_embd: int = 256
    n_ff: int = 256
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    n_vocab: int = 320
    n_ctx: int = 1024
    window: int = 16  # gemma3, olmo2
    pattern: int = 2  # gemma3, olmo2
    softcap: float = 0.0  # gemma3
    tied: bool | None = None  # None: as the family's small models are
    fused_qkv: bool = False  # llama
    bias: bool = False  # llama
    rope_freqs: bool = False  # llama
    n_experts: int = 0  # llama; 0 means 4 in mixtures
    n_experts_used: int = 2


def tiny_model(
    arch: str,
    path: str | Path,
    *,
    seed: int = 0,
    formats: str | Mapping[str, str] = "Q4_K",
    metadata: Mapping[str, object] | None = None,
    **dims: object,
) -> Path:
    """Write the model and return its path.

    `formats` is one format for all matrices, or a mapping whose longest key that a tensor's
    name contains decides; `metadata` adds to or overrides the file's keys (None removes one).
    """
    size = Dims(**dims)  # type: ignore[arg-type]
    rng = np.random.default_rng([seed, ARCHS.index(arch)])
    tensors: dict[str, Tensor] = {}
    shapes = tensor_shapes(arch, size)
    head = "output.weight" if "output.weight" in shapes else "token_embd.weight"
    for name, shape in shapes.items():
        fmt = FORMATS[_format_for(name, shape, formats)]
        if name == "rope_freqs.weight":
            data = np.linspace(1.0, 8.0, shape[0]).astype("<f4").tobytes()
        elif name.endswith("ssm_a"):
            data = (-1.0 - 0.25 * noise(rng, shape)).astype("<f4").tobytes()
        elif len(shape) == 1 or name.endswith("ssm_norm.weight"):
            base = 0.0 if name.endswith(("bias", "inp_shexp.weight")) else 1.0
            data = (base + 0.1 * noise(rng, shape)).astype("<f4").tobytes()
        else:
            gain = 3.0 if name == head else 1.0
            data = random_weight(fmt, shape, rng, gain / sqrt(shape[-1])).tobytes()
        tensors[name] = (shape, fmt.ggml_id, data)
    keys = hyper(arch, size) | tokenizer(arch, size.n_vocab) | dict(metadata or {})
    return write_gguf(path, {k: v for k, v in keys.items() if v is not None}, tensors)


def _format_for(name: str, shape: tuple[int, ...], formats: str | Mapping[str, str]) -> str:
    if len(shape) == 1 or is_plain(name) or tiny_decoders.is_plain(name):
        return "F32"
    if isinstance(formats, str):
        return formats
    return formats[max((key for key in formats if key in name), key=len)]


def random_weight(
    fmt: Format, shape: tuple[int, ...], rng: np.random.Generator, spread: float
) -> np.ndarray:
    """Bytes of a weight with about this standard deviation: uint8 `[rows, row bytes]`."""
    rows = int(np.prod(shape[:-1]))
    if not isinstance(fmt, BlockFormat):
        w = (noise(rng, (rows, shape[-1])) * spread).astype("<f4")
        if fmt.name == "F16":
            return w.astype("<f2").view(np.uint8)
        if fmt.name == "BF16":
            return (w.view("<u4") >> 16).astype("<u2").view(np.uint8)
        return w.view(np.uint8)
    blocks = shape[-1] // fmt.values
    raw = _bits(rng, rows * blocks * fmt.nbytes, np.uint8).reshape(rows, blocks, fmt.nbytes)
    d = 0.5 + _bits(rng, rows * blocks, np.uint16).reshape(rows, blocks) / 65536.0
    _put_scales(fmt, raw, d)
    sample = decode.dequantize(fmt, raw[: max(1, 4096 // shape[-1])]).ravel().tolist()
    _put_scales(fmt, raw, d * (spread / sqrt(fsum(w * w for w in sample) / len(sample))))
    return raw.reshape(rows, -1)


# Frozen hashes rest on these files, so the noise is made of the generator's own words and of
# exactly rounded operations: nothing that may change with a library or a machine.


def _bits(rng: np.random.Generator, count: int, dtype: type[np.unsignedinteger]) -> np.ndarray:
    words = rng.bit_generator.random_raw(-(-count * np.dtype(dtype).itemsize // 8))
    return words.astype("<u8").view(dtype)[:count].copy()


def noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Nearly normal numbers of deviation 1: sums of four 16-bit words."""
    count = int(np.prod(shape))
    total = _bits(rng, 4 * count, np.uint16).reshape(count, 4).astype(np.int64).sum(axis=1)
    return ((total - 131070) / (65536 / sqrt(3))).reshape(shape)


def _put_scales(fmt: BlockFormat, raw: np.ndarray, d: np.ndarray) -> None:
    """Set `d`, and a minimum that brings the mean of the weights to about 0."""
    put_d(fmt, raw, d)
    if fmt.dmin is not None:
        dmin = -fmt.min_sign * d * ((1 << fmt.bits) - 1) / 2
        raw[..., fmt.dmin : fmt.dmin + 2] = dmin.astype("<f2")[..., None].view(np.uint8)


def tensor_shapes(arch: str, s: Dims) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its GGUF name."""
    d, f, q, kv = s.n_embd, s.n_ff, s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    tied = arch not in ("llama", "gpt-oss", "qwen2moe") if s.tied is None else s.tied
    out: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (s.n_vocab, d),
        f"{'token_embd' if arch.startswith('lfm') else 'output'}_norm.weight": (d,),
    }
    if not tied:
        out["output.weight"] = (s.n_vocab, d)
    if s.rope_freqs:
        out["rope_freqs.weight"] = (s.head_dim // 2,)
    out |= tiny_decoders.model_shapes(arch, s)
    for i in range(tiny_decoders.layers(arch, s)):
        layer: dict[str, tuple[int, ...]] = {}
        if arch in DELTA:
            layer |= {"attn_norm.weight": (d,), "post_attention_norm.weight": (d,)}
        elif arch == "falcon-h1":
            layer |= {"attn_norm.weight": (d,), "ffn_norm": (d,)}
        elif arch not in POST_NORM:
            layer |= {"attn_norm.weight": (d,), "ffn_norm.weight": (d,)}
        layer |= tiny_recurrent.layer_shapes(arch, s, i)
        if not has_attention(arch, i):
            pass
        elif s.fused_qkv:
            layer["attn_qkv.weight"] = (q + 2 * kv, d)
        else:
            gated = 2 if arch in DELTA else 1
            layer |= {"attn_q.weight": (gated * q, d)}
            layer |= {"attn_k.weight": (kv, d), "attn_v.weight": (kv, d)}
        if s.fused_qkv and s.bias:
            layer["attn_qkv.bias"] = (q + 2 * kv,)
        elif arch in ("qwen2", "qwen2moe") or s.bias:
            layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if arch == "olmo2":
            layer |= {"attn_q_norm.weight": (q,), "attn_k_norm.weight": (kv,)}
        elif arch in HEAD_NORM and has_attention(arch, i):
            layer |= {"attn_q_norm.weight": (s.head_dim,), "attn_k_norm.weight": (s.head_dim,)}
        if arch == "gemma3" or arch in POST_NORM:
            layer |= {"post_attention_norm.weight": (d,), "post_ffw_norm.weight": (d,)}
        if has_attention(arch, i):
            layer["attn_output.weight"] = (d, q)
        if (e := n_experts(arch, s)) and not (arch in DENSE_FIRST and i == 0):
            layer |= {"ffn_gate_inp.weight": (e, d), "ffn_gate_exps.weight": (e, f, d)}
            layer |= {"ffn_up_exps.weight": (e, f, d), "ffn_down_exps.weight": (e, d, f)}
            if arch in SHARED_EXPERT:
                layer |= {"ffn_gate_shexp.weight": (f, d), "ffn_up_shexp.weight": (f, d)}
                layer["ffn_down_shexp.weight"] = (d, f)
            if arch in ("qwen35moe", "qwen2moe"):
                layer["ffn_gate_inp_shexp.weight"] = (d,)
            if arch in DENSE_FIRST:
                layer["exp_probs_b.bias"] = (e,)
        else:
            layer |= {"ffn_gate.weight": (f, d), "ffn_up.weight": (f, d), "ffn_down.weight": (d, f)}
        if arch in DECODERS:
            layer = tiny_decoders.layer_shapes(arch, s, i, layer)
        out |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return out


def n_experts(arch: str, s: Dims) -> int:
    """Experts of a layer that has them."""
    return s.n_experts or (4 if arch in MIXTURES else 0)


def hyper(arch: str, s: Dims) -> dict[str, object]:
    """The model's own keys."""
    keys: dict[str, object] = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        f"{arch}.context_length": s.n_ctx,
        f"{arch}.embedding_length": s.n_embd,
        f"{arch}.block_count": s.n_layers,
        f"{arch}.feed_forward_length": s.n_ff,
        f"{arch}.attention.head_count": s.n_heads,
        f"{arch}.attention.head_count_kv": s.n_kv_heads,
        f"{arch}.attention.key_length": s.head_dim,
        f"{arch}.attention.value_length": s.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{arch}.rope.dimension_count": s.head_dim,
        f"{arch}.rope.freq_base": 10000.0 if arch == "llama" else 1000000.0,
    }
    if arch in ("gemma3", "olmo2"):
        keys[f"{arch}.attention.sliding_window"] = s.window
        keys[f"{arch}.attention.sliding_window_pattern"] = s.pattern
        if s.softcap:
            keys[f"{arch}.final_logit_softcapping"] = s.softcap
    if arch in ("granite", "granitemoe", "granitehybrid"):
        keys[f"{arch}.embedding_scale"], keys[f"{arch}.residual_scale"] = 2.0, 0.7
        keys[f"{arch}.attention.scale"], keys[f"{arch}.logit_scale"] = 0.11, 1.5
    if n_experts(arch, s):
        keys[f"{arch}.expert_count"] = n_experts(arch, s)
        keys[f"{arch}.expert_used_count"] = s.n_experts_used
    if arch in MIXTURES and arch != "granitemoe":
        keys[f"{arch}.expert_feed_forward_length"] = s.n_ff
    if arch in SHARED_EXPERT:
        keys[f"{arch}.expert_shared_feed_forward_length"] = s.n_ff
    if arch == "ernie4_5-moe":
        keys[f"{arch}.leading_dense_block_count"], keys[f"{arch}.interleave_moe_layer_step"] = 1, 1
    return keys | tiny_recurrent.hyper(arch, s) | tiny_decoders.hyper(arch, s)


NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""Token types, as GGUF numbers them."""


def tokenizer(arch: str, n_vocab: int) -> dict[str, object]:
    """A small vocabulary of the kind that the family's files hold; any text can be encoded."""
    if n_vocab < 288:
        raise ValueError("a tiny vocabulary needs 288 tokens: all bytes, and a few beside them")
    pairs = [a + b for a in "theaoinsrdl" for b in "eaoitnshr"]
    return _spm(n_vocab, pairs) if arch == "gemma3" else _bpe(arch, n_vocab, pairs)


def _bpe(arch: str, n_vocab: int, pairs: list[str]) -> dict[str, object]:
    """Byte-level BPE: 256 bytes in GPT-2's alphabet, merges of letters, two control tokens."""
    alphabet = [_gpt2_letter(byte) for byte in range(256)]
    merged = pairs[: n_vocab - 258]
    fill = [f"<unused{i}>" for i in range(n_vocab - 258 - len(merged))]
    tokens = [*alphabet, *merged, *fill, "<|begin|>", "<|end|>"]
    types = [NORMAL] * (256 + len(merged)) + [CONTROL] * (len(fill) + 2)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe" if arch == "llama" else "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [f"{pair[0]} {pair[1]}" for pair in merged],
        "tokenizer.ggml.bos_token_id": n_vocab - 2,
        "tokenizer.ggml.eos_token_id": n_vocab - 1,
        "tokenizer.ggml.add_bos_token": arch == "llama",
    }


def _gpt2_letter(byte: int) -> str:
    """GPT-2 writes a byte as itself if it prints in Latin-1, else as a letter from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in plain:
        return chr(byte)
    return chr(256 + sum(1 for b in range(byte) if b not in plain))


def _spm(n_vocab: int, pairs: list[str]) -> dict[str, object]:
    """SentencePiece: unknown, begin, end, 256 byte tokens, letters and pairs with scores."""
    letters = ["\u2581", *"etaoinshrdlcumwfgypbvk"]
    words = [*letters, *pairs][: n_vocab - 259]
    words += [f"<unused{i}>" for i in range(n_vocab - 259 - len(words))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    types += [CONTROL if word.startswith("<unused") else NORMAL for word in words]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{b:02X}>" for b in range(256)),
            *words,
        ],
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }
