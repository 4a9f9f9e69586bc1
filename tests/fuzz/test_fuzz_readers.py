"""Readers of files from strangers: what fuzzing once found, and a moment of it anew.

`scripts/fuzz_readers.py --minutes 10` is the long form.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("nacl")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import fuzz_readers  # noqa: E402

READERS = fuzz_readers.readers()
SEEDS = sorted(p for p in fuzz_readers.FOUND.glob("*/*") if p.parent.name in READERS)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_is_mended(seed, tmp_path):
    reader = READERS[seed.parent.name]
    path = tmp_path / seed.name
    raw = seed.read_bytes()
    path.write_bytes(raw)
    fuzz_readers.judge(reader, path, measure=False)  # modules are loaded
    path.write_bytes(raw)
    assert fuzz_readers.judge(reader, path, measure=True) is None


@pytest.mark.parametrize("name", READERS)
def test_a_moment_of_damage(name):
    assert fuzz_readers.fuzz(name, READERS[name], 2.0, 7, None) == 0


def test_the_judge_notices(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * 64)
    kept: list[bytes] = []

    def greedy(_: Path) -> None:
        kept.append(bytes(8 << 20))

    def broken(_: Path) -> None:
        raise ValueError("no sentence")

    for read, told in ((greedy, "of memory"), (broken, "no sentence")):
        reader = fuzz_readers.Reader(read, [], fuzz_readers._as_is, "")
        assert told in (fuzz_readers.judge(reader, path, measure=True) or "")
