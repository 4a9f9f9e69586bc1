"""What one generated token costs: the bytes of weights that it reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kinetic.ir.gguf import GGUFFile

_LAYER = re.compile(r"blk\.(\d+)\.")
_LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight")

SHARE_OF_BANDWIDTH = (0.78, 1.02)
"""How much of the measured read speed decoding reaches on the CPU: what was seen over formats and
sizes of models, with the measurement's own error. scripts/fit_vs_bench.py compares both."""


@dataclass(frozen=True)
class Cost:
    """*Units*: bytes. `experts` is the part of `weights` that routed experts are."""

    weights: int
    per_token: int
    experts: int


def cost_of(file: GGUFFile) -> Cost:
    """What a model weighs and what a token reads, from its header.

    Of a table that is only looked up, a token reads one row; of the routed experts, those that
    are used; of a block that only drafts, nothing.
    """
    architecture = file.get_str("general.architecture", "")
    used, count = (file.get_int(f"{architecture}.expert_{k}", 0) for k in ("used_count", "count"))
    layers = file.get_int(f"{architecture}.block_count", 0)
    drafting = file.get_int(f"{architecture}.nextn_predict_layers", 0)
    tied = "output.weight" not in file.tensors
    weights = per_token = experts = 0
    for name, info in file.tensors.items():
        weights += info.nbytes
        layer = _LAYER.match(name)
        if layer is not None and drafting and int(layer[1]) >= layers - drafting:
            continue
        if name in _LOOKED_UP and not (tied and name == "token_embd.weight"):
            per_token += info.nbytes // max(info.shape[0], 1)
        elif "_exps." in name and count > 0:
            experts += info.nbytes
            per_token += info.nbytes * min(used, count) // count
        else:
            per_token += info.nbytes
    return Cost(weights, per_token, experts)


def expected_speed(per_token: int, bandwidth: float) -> tuple[float, float]:
    """Tokens a second, from and to. *Units*: bytes, and bytes a second."""
    whole = bandwidth / max(per_token, 1)
    low, high = SHARE_OF_BANDWIDTH
    return whole * low, whole * high
