"""`cases.json`: each complaint that users of other engines had is tested, or decided otherwise."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TABLE = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
AREAS = frozenset(["AN", "OL", "RE", "RS", "RB", "ST", "TC", "CT", "JS", "GR", "EM", "RR"])


@cache
def in_file(file: str) -> dict[str, str]:
    """The tests of a file by name, with their source."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(text, node) or "" for node in found}


@pytest.mark.parametrize("case", TABLE)
def test_a_case_is_tested_or_decided_otherwise(case):
    docs = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    decided = docs.partition("## Where Kinetic decides otherwise")[2]
    assert TABLE[case]
    for entry in TABLE[case]:
        if entry.startswith("docs: "):
            assert f"| {entry.removeprefix('docs: ')} |" in decided, entry
            continue
        file, _, name = entry.partition("::")
        assert name.startswith("test_") and name in in_file(file), entry
        if name in ("test_case", "test_case_cut_in_every_way"):  # their cases go by the id
            assert f'"{case}' in (ROOT / file).read_text(encoding="utf-8"), entry


def test_no_case_is_forgotten(shared_dir):
    lines = (shared_dir / "cases" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    ids = {json.loads(line)["id"] for line in lines}
    assert {i for i in ids if i.split("-")[0] in AREAS} == set(TABLE)
