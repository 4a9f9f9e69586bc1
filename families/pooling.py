"""From the rows of a text to one vector, or to a classifier's scores."""

from __future__ import annotations

from kinetic.families.config import Config
from kinetic.ir.build import Builder
from kinetic.ir.graph import Node

OUTPUTS = ("embedding", "scores")
"""What models with a pooling type give in place of logits."""


def pooled(b: Builder, x: Node, cfg: Config) -> Node:
    """The rows `[T, D]` of each text as one, `[R, D]`, or its scores by the file's classifier."""
    kind = cfg.h.pooling()
    first = kind == "cls" or (kind == "rank" and cfg.h.encoder)
    if kind == "mean" or first:
        x = b.op("pool", x, kind="first" if first else "mean", name="embedding")
    else:
        x = b.take_outputs(x, "embedding")  # the text's last row
    return classified(b, x, cfg) if kind == "rank" else x


def classified(b: Builder, x: Node, cfg: Config) -> Node:
    """`cls.output` of the vectors `[R, D]`, through `tanh(cls)` where the file has that layer."""
    if b.has("cls.weight"):
        x = b.linear(
            x,
            b.weight("cls.weight", (cfg.n_embd, cfg.n_embd)),
            b.maybe_weight("cls.bias", (cfg.n_embd,)),
            "cls",
        )
        x = b.op("tanh", x, name="cls_tanh")
    found = cfg.h.file.tensors.get("cls.output.weight")
    count = found.shape[0] if found else 1
    w, bias = b.weight("cls.output.weight", (count, cfg.n_embd)), None
    if b.has("cls.output.bias"):
        bias = b.weight("cls.output.bias", (count,))
    return b.linear(x, w, bias, "scores")
