"""The soak script itself, for a few seconds: `scripts/soak.py` runs for as long as one likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "soak.py"


def test_a_short_soak_finds_no_difference() -> None:
    command = [sys.executable, str(SCRIPT), "--minutes", "0.05", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no difference, nothing leaked" in done.stdout
