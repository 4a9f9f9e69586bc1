#!/usr/bin/env python3
"""Every message that Kinetic raises, collected from the code: the book's page of messages.

    python3 scripts/messages.py                 # print the page
    python3 scripts/check.py --fix docs         # write it, with the other written pages

What a message fills in is written as an ellipsis. Run by the project's own Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kinetic", "ir", "codegen", "runtime", "families")
KINDS = {
    "UsageError": "The command line or the call is wrong (exit code 2)",
    "ModelFileError": "A file is damaged, cut short, or not what it should be",
    "UnsupportedError": "The file is fine and needs what Kinetic lacks",
    "ContextError": "A request does not fit the context or the memory",
    "TemplateError": "A chat template refused the conversation",
    "NetworkError": "A hub cannot be reached or refuses",
    "QueueFull": "Too many requests are waiting",
    "ApiError": "The server refused a request",
    "KineticError": "Anything else",
}
HOLE = "\u2026"
WRITTEN = "<!-- Written by scripts/check.py --fix from the code; do not edit. -->\n"


class Message(NamedTuple):
    """One message: the class that carries it, and its text with holes."""

    kind: str
    text: str


def messages() -> list[Message]:
    """Every message of the code, each once."""
    found: set[Message] = set()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            found.update(_raised(ast.parse(file.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda m: (list(KINDS).index(m.kind), m.text.lower()))


def _raised(tree: ast.Module) -> Iterator[Message]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        kind = node.func.id
        if kind not in KINDS:
            continue
        texts = [text for text in map(_template, node.args) if re.search(r"[a-z]{2} ", text)]
        if texts:
            yield Message(kind, " ".join(texts[0].split()))


def _template(node: ast.expr) -> str:
    """The text of a string expression, with a hole for each part that is computed."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(v) if isinstance(v, ast.Constant) else HOLE for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return HOLE


def page() -> str:
    """docs/messages.md."""
    parts = [
        f"# Every message\n\n{WRITTEN}\n"
        "All that Kinetic says when it cannot go on, as the code has it; `\u2026` stands for what "
        "is filled in. On the command line a message follows `kinetic: `. Each says what to do; "
        "[Troubleshooting](troubleshooting.md) says more about the frequent ones. What is not "
        "listed here comes from the system, with the file's name, or is a bug of Kinetic's own, "
        "which shows a traceback: please report it.\n"
    ]
    every = messages()
    for kind, title in KINDS.items():
        lines = [_line(m.text) for m in every if m.kind == kind]
        if lines:
            parts.append(f"## {title}\n\n" + "".join(lines))
    return "\n".join(parts)


def _line(text: str) -> str:
    mark = "``" if "`" in text else "`"
    space = " " if mark == "``" else ""
    return f"- {mark}{space}{text}{space}{mark}\n"


if __name__ == "__main__":
    print(page(), end="")
