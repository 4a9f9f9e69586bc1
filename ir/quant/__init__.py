"""Every weight format Kinetic reads, by name and by ggml's number.

One file declares one format (`base.py` says how); a new one joins by its line below.
"""

from __future__ import annotations

from kinetic.errors import UnsupportedError
from kinetic.ir.ggml_types import GGML_TYPES, REMOVED_TYPES
from kinetic.ir.quant.base import BlockFormat, Format
from kinetic.ir.quant.floats import BF16, F16, F32
from kinetic.ir.quant.iq1 import IQ1_M, IQ1_S
from kinetic.ir.quant.iq2 import IQ2_S, IQ2_XS, IQ2_XXS
from kinetic.ir.quant.iq3 import IQ3_S, IQ3_XXS
from kinetic.ir.quant.iq4 import IQ4_NL, IQ4_XS
from kinetic.ir.quant.mxfp4 import MXFP4
from kinetic.ir.quant.nvfp4 import NVFP4
from kinetic.ir.quant.packed_bits import Q1_0, Q2_0
from kinetic.ir.quant.q2_k import Q2_K
from kinetic.ir.quant.q3_k import Q3_K
from kinetic.ir.quant.q4_0 import Q4_0
from kinetic.ir.quant.q4_1 import Q4_1
from kinetic.ir.quant.q4_k import Q4_K
from kinetic.ir.quant.q5_0 import Q5_0
from kinetic.ir.quant.q5_1 import Q5_1
from kinetic.ir.quant.q5_k import Q5_K
from kinetic.ir.quant.q6_k import Q6_K
from kinetic.ir.quant.q8_0 import Q8_0
from kinetic.ir.quant.tq1_0 import TQ1_0
from kinetic.ir.quant.tq2_0 import TQ2_0

_ALL: tuple[Format, ...] = (
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4_K,
    Q5_K,
    Q6_K,
    Q3_K,
    Q2_K,
    TQ2_0,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q1_0,
    Q2_0,
    NVFP4,
    TQ1_0,
    IQ3_S,
    IQ3_XXS,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ1_M,
    IQ1_S,
)

FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in _ALL}
"""Formats by ggml's name that a model may use."""

_BY_ID: dict[int, Format] = {fmt.ggml_id: fmt for fmt in _ALL}


def by_ggml_id(ggml_id: int) -> Format:
    """The format that ggml numbers `ggml_id`.

    *Raises:* UnsupportedError, naming the format where ggml has a name for it.
    """
    found = _BY_ID.get(ggml_id)
    if found is not None:
        return found
    known = ", ".join(FORMATS)
    if ggml_id in REMOVED_TYPES:
        raise UnsupportedError(
            f"Tensors of type {REMOVED_TYPES[ggml_id]} belong to an old ggml that no longer "
            f"exists; get the model in one of {known}."
        )
    if ggml_id in GGML_TYPES:
        raise UnsupportedError(
            f"Weights of type {GGML_TYPES[ggml_id].name} are not supported yet; "
            f"get the model in one of {known}."
        )
    raise UnsupportedError(
        f"Tensor type number {ggml_id} is unknown; get the model in one of {known}."
    )


def doc_table() -> str:
    """The formats as a markdown table, for the docs."""
    lines = [
        "| format | bits per weight | values a block | values a scale | minimum |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for fmt in sorted(_ALL, key=lambda f: f.bits_per_weight):
        bits = f"{fmt.bits_per_weight:.4g}"
        if isinstance(fmt, BlockFormat):
            minimum = {0: "", 1: "per block", -1: "per group"}[fmt.min_sign]
            shared = fmt.update or fmt.group_values
            lines.append(f"| {fmt.name} | {bits} | {fmt.values} | {shared} | {minimum} |")
        else:
            lines.append(f"| {fmt.name} | {bits} | 1 | | |")
    return "\n".join(lines) + "\n"
