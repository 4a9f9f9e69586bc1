"""Which type each tensor gets for a target such as Q4_K_M: llama-quantize's mixtures.

A target has a default type. Tensors that matter more than their size (the output, values of
attention, some layers of ffn_down) get a better one; tensors that are small or delicate keep
the type they have; rows that are no whole number of blocks get a type with smaller blocks.

*Source*: llama.cpp's `llama-quant.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kinetic.errors import UsageError
from kinetic.ir.gguf import GGUFFile, TensorInfo
from kinetic.ir.quant import FORMATS


class Target(NamedTuple):
    """What can be asked for: its number in `general.file_type`, and its default type."""

    name: str
    file_type: int
    default: str


TARGETS = {
    target.name: target
    for target in (
        Target("F32", 0, "F32"),
        Target("F16", 1, "F16"),
        Target("Q4_0", 2, "Q4_0"),
        Target("Q4_1", 3, "Q4_1"),
        Target("Q8_0", 7, "Q8_0"),
        Target("Q5_0", 8, "Q5_0"),
        Target("Q5_1", 9, "Q5_1"),
        Target("Q2_K", 10, "Q2_K"),
        Target("Q3_K_S", 11, "Q3_K"),
        Target("Q3_K_M", 12, "Q3_K"),
        Target("Q3_K_L", 13, "Q3_K"),
        Target("Q4_K_S", 14, "Q4_K"),
        Target("Q4_K_M", 15, "Q4_K"),
        Target("Q5_K_S", 16, "Q5_K"),
        Target("Q5_K_M", 17, "Q5_K"),
        Target("Q6_K", 18, "Q6_K"),
        Target("IQ4_NL", 25, "IQ4_NL"),
        Target("IQ4_XS", 30, "IQ4_XS"),
        Target("BF16", 32, "BF16"),
        Target("MXFP4_MOE", 38, "MXFP4"),
    )
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
NEED_IMPORTANCE = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "Q2_K_S")
"""Targets of llama-quantize that need an importance matrix; none of them is written here."""

_FLOATS = ("F32", "F16", "BF16")
_FALLBACK = {
    "IQ4_XS": "IQ4_NL",
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}


def find_target(name: str) -> Target:
    """The target of a name, in any case, or of llama.cpp's number.

    *Raises* `UsageError` naming those there are.
    """
    typed = name.upper()
    typed = ALIASES.get(typed, typed)
    for target in TARGETS.values():
        if typed in (target.name, str(target.file_type)):
            return target
    known = ", ".join(TARGETS)
    if typed in NEED_IMPORTANCE:
        raise UsageError(
            f"{typed} is not written: it needs importance data for every tensor and is worth it "
            f"only with searches that are not here; IQ4_XS or Q2_K are the smallest of {known}."
        )
    raise UsageError(f"{name!r} is no type to quantize to; there are {known}.")


@dataclass(frozen=True)
class Wishes:
    """What the command line says beyond the target."""

    pure: bool = False
    output_type: str | None = None
    embedding_type: str | None = None
    leave_output: bool = False
    by_pattern: tuple[tuple[str, str], ...] = ()
    """Pairs of a regular expression and a type; the first that is found in a name decides."""


@dataclass(frozen=True)
class Architecture:
    """What the mixtures ask about a model. `layers` counts every block, extra ones too."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    experts: int

    @classmethod
    def of(cls, file: GGUFFile) -> Architecture:
        """Read from a model's metadata."""
        arch = file.architecture

        def number(key: str, default: int) -> int:
            value = file.metadata.get(f"{arch}.{key}", default)
            if isinstance(value, bool | str | float):
                return default
            return int(value) if isinstance(value, int) else int(next(iter(value)))

        heads = number("attention.head_count", 0)
        return cls(
            arch,
            number("block_count", 0),
            heads,
            number("attention.head_count_kv", heads),
            number("expert_count", 0),
        )

    @property
    def shared(self) -> int:
        """Query heads a key/value head serves; 0 where the first layer has none."""
        return self.heads // self.kv_heads if self.kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """Models of 80 layers whose attn_v is small beside the rest."""
        if self.name == "llama":
            return self.layers == 80 and self.heads != self.kv_heads
        return self.layers == {"deci": 80, "jais2": 68, "olmo": 80, "qwen2": 80}.get(self.name)


@dataclass(frozen=True)
class Choice:
    """A tensor and the type it gets; `fallback_from` is the type that its rows do not fit."""

    info: TensorInfo
    type_name: str
    fallback_from: str | None = None


def in_order(names: Iterable[str]) -> list[str]:
    """Tensor names as llama-quantize writes them: by layer, then by bytes of the name."""
    return sorted(names, key=lambda name: (_layer(name), name.encode()))


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def choose(
    tensors: Sequence[TensorInfo],
    architecture: Architecture,
    target: Target,
    wishes: Wishes,
    *,
    importance: bool = False,
) -> list[Choice]:
    """The type of each tensor; `tensors` come in the order of the file to be written."""
    kinds = [category(info.name) for info in tensors]
    state = _State(
        architecture,
        target,
        wishes,
        importance,
        tied="output" not in kinds,
        n_values=sum(kind in _VALUES for kind in kinds),
    )
    return [state.choose(info, kind) for info, kind in zip(tensors, kinds, strict=True)]


# Names. ------------------------------------------------------------------------------------

_VALUES = ("attn_v", "attn_qkv", "attn_kv_b")
_PARTS = (
    *("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight", "attn_k.weight", "attn_q.weight"),
    *("attn_output.weight", "ffn_up", "ffn_gate", "ffn_down"),
)
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")

_KEPT = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel"),
    *("per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight"),
    *("indexer.k_proj.weight", "indexer.q_proj.weight"),
    *(f"time_mix_{part}.weight" for part in ("first", "w0", "w1", "w2", "v0", "v1", "v2")),
    *(f"time_mix_{part}.weight" for part in ("a0", "a1", "a2", "g1", "g2", "lerp_fused")),
    *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "attn_rel_b.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
"""Parts of names of tensors that are small or delicate."""


def category(name: str) -> str:
    """The part a tensor plays, as far as mixtures ask."""
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "token_embd"
    for part in _PARTS:
        if part in name:
            return part.removesuffix(".weight")
    return ""


def can_change(info: TensorInfo, wishes: Wishes) -> bool:
    """Whether a tensor may be given another type at all."""
    name = info.name
    if _dims(info) < 2 or not name.endswith("weight"):
        return False
    if name in ("position_embd.weight", "token_types.weight"):
        return False
    if wishes.leave_output and name == "output.weight":
        return False
    return not any(part in name for part in _KEPT)


def _dims(info: TensorInfo) -> int:
    dims = list(info.shape)
    while len(dims) > 1 and dims[0] == 1:
        dims.pop(0)
    return len(dims)


# Types. ------------------------------------------------------------------------------------


@dataclass
class _State:
    """Counts what was seen: `attn_v` and `ffn_down` change their type by how many came before."""

    architecture: Architecture
    target: Target
    wishes: Wishes
    importance: bool
    tied: bool
    n_values: int
    seen: dict[str, int] = field(default_factory=dict)

    def choose(self, info: TensorInfo, kind: str) -> Choice:
        wishes, default = self.wishes, self.target.default
        if not can_change(info, wishes):
            return Choice(info, info.type_name)
        named = self._by_pattern(info.name)
        named_layers = named and info.name == "per_layer_token_embd.weight"
        if wishes.embedding_type and kind == "token_embd" and not named_layers:
            return Choice(info, wishes.embedding_type)
        if wishes.output_type and kind == "output":
            return Choice(info, wishes.output_type)
        if default in _FLOATS:
            return Choice(info, default)
        chosen = named or default
        if named is None and not wishes.pure:
            chosen = self._mixed(info, kind)
        return _fitting(Choice(info, chosen))

    def _by_pattern(self, name: str) -> str | None:
        for pattern, type_name in self.wishes.by_pattern:
            if re.search(pattern, name):
                return type_name
        return None

    def _mixed(self, info: TensorInfo, kind: str) -> str:
        target, default = self.target.name, self.target.default
        if kind == "output" or (self.tied and kind == "token_embd"):
            return self._output(info)
        if target == "MXFP4_MOE":
            experts = len(info.shape) > 2 and info.shape[-3] > 1
            return "MXFP4" if experts else "Q8_0"
        if kind == "token_embd":
            return default
        if kind in _VALUES:
            return self._values()
        if kind == "attn_k":
            return "Q8_0" if self.architecture.experts == 8 else default
        if kind == "ffn_down":
            return self._ffn_down(info.name)
        if kind == "attn_output":
            return self._attn_output()
        return default

    def _output(self, info: TensorInfo) -> str:
        if self.wishes.output_type:
            return self.wishes.output_type
        default = self.target.default
        odd = info.shape[-1] % FORMATS[default].values != 0
        if self.target.name == "MXFP4_MOE" or self.architecture.name == "falcon" or odd:
            return "Q8_0"
        return default if default == "Q8_0" else "Q6_K"

    def _values(self) -> str:
        target, chosen, arch = self.target.name, self.target.default, self.architecture
        i = self._next("values")
        if target == "Q2_K":
            chosen = "Q4_K" if arch.shared >= 4 else "Q3_K"
        elif target == "Q3_K_M":
            chosen = "Q5_K" if i < 2 else "Q4_K"
        elif target == "Q3_K_L" or (target in ("IQ4_NL", "IQ4_XS") and arch.shared >= 4):
            chosen = "Q5_K"
        elif target in ("Q4_K_M", "Q5_K_M") and _more_bits(i, self.n_values):
            chosen = "Q6_K"
        elif target == "Q4_K_S" and i < 4:
            chosen = "Q5_K"
        if arch.is_70b and chosen in ("Q3_K", "Q4_K"):
            chosen = "Q5_K"
        return "Q8_0" if arch.experts == 8 else chosen

    def _ffn_down(self, name: str) -> str:
        target, chosen, arch = self.target.name, self.target.default, self.architecture
        falcon, n = arch.name == "falcon", arch.layers
        i = self._next("ffn_down")
        if arch.experts > 1:
            i = _layer(name)  # experts of a layer are tensors of their own in old files
        if target == "Q2_K":
            return "Q3_K"
        if target == "Q3_K_M":
            if i < n // 16:
                return "Q5_K"
            return "Q4_K" if not falcon or _more_bits(i, n) else "Q3_K"
        if target == "Q3_K_L":
            return "Q4_K" if falcon else "Q5_K"
        if target == "Q4_K_M":
            if falcon:
                return "Q6_K" if i < n // 16 else "Q5_K" if _more_bits(i, n) else "Q4_K"
            return "Q6_K" if _more_bits(i, n) else chosen
        first = i < n // 8
        if target in ("IQ4_NL", "IQ4_XS") and first and not self.importance:
            return "Q5_K"
        if target == "Q5_K_M" and _more_bits(i, n):
            return "Q6_K"
        if target == "Q4_K_S" and first and not falcon:
            return "Q5_K"
        if target in ("Q4_0", "Q5_0") and first and self.importance:
            return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[target]
        return chosen

    def _attn_output(self) -> str:
        target, default, arch = self.target.name, self.target.default, self.architecture
        if arch.name == "falcon":
            return "Q4_K" if target == "Q3_K_L" else default
        if arch.experts == 8:
            raised = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS")
            return "Q5_K" if target in raised else default
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(target, default)

    def _next(self, what: str) -> int:
        count = self.seen.get(what, 0)
        self.seen[what] = count + 1
        return count


def _more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _fitting(choice: Choice) -> Choice:
    """A type whose blocks the tensor's rows are made of."""
    columns, wanted = choice.info.shape[-1], choice.type_name
    if columns % FORMATS[wanted].values == 0:
        return choice
    smaller = _FALLBACK.get(wanted, wanted)
    if columns % FORMATS[smaller].values:
        smaller = "F16"
    return replace(choice, type_name=smaller, fallback_from=wanted)
