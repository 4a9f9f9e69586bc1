"""Compare with a committed text; `KINETIC_UPDATE_GOLDEN=1 pytest ...` rewrites it instead."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

UPDATE = bool(os.environ.get("KINETIC_UPDATE_GOLDEN"))


def check_golden(path: Path, text: str) -> None:
    """Fail with a diff where the file's text is another."""
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    if known != text:
        diff = difflib.unified_diff(
            known.splitlines(), text.splitlines(), str(path), "now", lineterm="", n=1
        )
        raise AssertionError(
            "\n".join([*list(diff)[:60], "(KINETIC_UPDATE_GOLDEN=1 accepts the new text)"])
        )
