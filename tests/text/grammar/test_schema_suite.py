"""The JSON-Schema-Test-Suite: nothing that does not fit a schema may be written."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("llguidance")

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def suite():
    spec = importlib.util.spec_from_file_location(
        "schema_suite", ROOT / "scripts" / "schema_suite.py"
    )
    assert spec is not None and spec.loader is not None
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    return suite


def test_no_group_lets_a_wrong_document_pass(suite) -> None:
    groups = json.loads(suite.GOLDEN.read_text("utf-8"))
    found = [(suite.judged(group), group) for group in groups]
    assert [(shown, g["group"]) for (kind, shown), g in found if kind == "wrong"] == []
    counts = Counter(kind for (kind, _), _ in found)
    assert len(groups) == 384 and counts["enforced"] >= 139 and counts["refused"] <= 221, counts


def test_the_script_reads_an_sdist(suite, tmp_path: Path) -> None:
    group = {"description": "d", "schema": {"$schema": "x", "type": "null"}}
    body = json.dumps([{**group, "tests": [{"data": None, "valid": True}]}]).encode()
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as archive:
        for name in ("type.json", "optional/anchor.json"):
            info = tarfile.TarInfo(f"jsonschema-1/json/tests/draft2020-12/{name}")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    (read,) = suite.groups_of_sdist(tmp_path / "s.tar.gz")
    assert read["schema"] == {"type": "null"} and suite.judged(read) == ("enforced", "")
