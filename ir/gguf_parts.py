"""Names of a split model's files: `model-00002-of-00003.gguf`.

*Source*: `llama-gguf-split`, which gives them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PART = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.I)
MAX_PARTS = 9999  # what a name of five digits each is used for in practice, and then some


class PartName(NamedTuple):
    """What the name of one part says; `no` counts from 1 to `of`."""

    stem: str
    no: int
    of: int
    suffix: str

    def sibling(self, no: int) -> str:
        """The name of another part of the same model."""
        return f"{self.stem}-{no:05}-of-{self.of:05}{self.suffix}"

    def all(self) -> list[str]:
        """The names of all parts, in order."""
        return [self.sibling(no) for no in range(1, self.of + 1)]


def part_name(file_name: str) -> PartName | None:
    """The parts of a part's name, None for a file that is not named like one."""
    match = _PART.fullmatch(file_name)
    if match is None:
        return None
    no, count = int(match["no"]), int(match["count"])
    if not 1 <= no <= count <= MAX_PARTS:
        return None
    return PartName(match["stem"], no, count, match["suffix"])
