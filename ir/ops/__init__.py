"""Every op of the IR: `OPS["rms_norm"]` is its declaration; `doc_table()` its page."""

from kinetic.ir.ops import draft, encoder, lowered, model, recurrent
from kinetic.ir.ops.spec import LEVELS, OPS, OpSpec, RuleError, op

__all__ = [
    "LEVELS",
    "OPS",
    "OpSpec",
    "RuleError",
    "doc_table",
    "draft",
    "encoder",
    "lowered",
    "model",
    "op",
    "recurrent",
]

_HEADINGS = {
    "model": "Ops that families write",
    "lowered": "Ops that passes put in their place",
}


def doc_table() -> str:
    """The text of `docs/ops.md`."""
    lines = [
        "# The ops of the IR",
        "",
        "Written by `kinetic.ir.ops.doc_table()` from the declarations in `ir/ops/`; do not edit.",
        "`x?` is an input that may be left out. What each op rounds and how it sums is in",
        "[arithmetic.md](arithmetic.md).",
    ]
    for level in LEVELS:
        lines += ["", f"## {_HEADINGS[level]}", "", "| op | meaning |", "| --- | --- |"]
        for spec in OPS.values():
            if spec.level == level:
                doc = " ".join(spec.doc.split())
                lines.append(f"| `{spec.signature}` | {doc} |")
    return "\n".join(lines) + "\n"
