"""Columns of text, as wide as what is in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kinetic.cli.terminal import printable

_MAX_NAME = 60


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Lines of aligned columns; those in `right` are aligned to the right."""
    lines = [head, *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    widths[0] = min(widths[0], _MAX_NAME)
    text = ""
    for line in lines:
        cells = [
            f"{cell:>{width}}" if i in right else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text += "  ".join(cells).rstrip() + "\n"
    return text


def gib(nbytes: int) -> str:
    """A size as people read it."""
    if nbytes >= 2**30 // 10:
        return f"{nbytes / 2**30:.2f} GiB"
    return f"{nbytes / 2**20:.1f} MiB"


def _one_line(cell: str) -> str:
    return printable(cell).replace("\n", " ").replace("\t", " ")
