#!/usr/bin/env python3
"""Check everything a change must keep: format, lint, types, imports, docs, tests.

    python3 scripts/check.py               # all of it, one line a step
    python3 scripts/check.py --no-tests    # all but the tests
    python3 scripts/check.py --fix         # also rewrite what can be: format, lint, docs
    python3 scripts/check.py types docs    # only these steps

A step that fails prints what it found under its line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from _setup import ROOT, ensure_software_vulkan, ensure_venv, stop


class Step(NamedTuple):
    """One check: a command, and the one that repairs what the check finds."""

    name: str
    command: tuple[str, ...]
    repair: tuple[str, ...] | None = None


def steps(site: str) -> tuple[Step, ...]:
    """The checks, the quick ones first."""
    ruff, docs, brief = ("-m", "ruff"), ("scripts/_docs.py",), ("--output-format", "concise")
    return (
        Step("format", (*ruff, "format", "--check", *brief, "."), (*ruff, "format", ".")),
        Step("lint", (*ruff, "check", *brief, "."), (*ruff, "check", "--fix", ".")),
        Step("docs", (*docs, "--check"), docs),
        Step("book", ("-m", "mkdocs", "build", "-q", "--strict", "-d", site)),
        Step("imports", ("-c", "from importlinter.cli import lint_imports_command as c; c()")),
        Step("types", ("-m", "mypy")),
        Step("tests", ("-m", "pytest", "-m", "not slow")),
    )


def main() -> int:
    """Run the wanted checks and say how each went."""
    switches = {word for word in sys.argv[1:] if word.startswith("-")}
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    if switches & {"-h", "--help"}:
        print((__doc__ or "").strip())
        return 0
    with tempfile.TemporaryDirectory() as site:
        every = steps(site)
        names = [step.name for step in every]
        unknown = [*(switches - {"--fix", "--no-tests"}), *(set(wanted) - set(names))]
        if unknown:
            stop(f"there is no {unknown[0]}; the steps are {', '.join(names)}.")
        chosen = [
            step
            for step in every
            if (not wanted or step.name in wanted)
            and not (step.name == "tests" and "--no-tests" in switches)
        ]
        python = str(ensure_venv("dev", "test", "vulkan"))
        if any(step.name == "tests" for step in chosen):
            ensure_software_vulkan()
        results = [_run(python, step, fix="--fix" in switches) for step in chosen]
    return 0 if all(results) else 1


def _run(python: str, step: Step, *, fix: bool) -> bool:
    if fix and step.repair:
        subprocess.run([python, *step.repair], cwd=ROOT, capture_output=True, check=False)
    started = time.monotonic()
    done = subprocess.run(
        [python, *step.command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    good = done.returncode == 0
    output = "\n".join(part for part in (done.stdout.strip(), done.stderr.strip()) if part)
    note = ""
    if good and step.name == "tests":
        note = f"  {output.splitlines()[-1]}"
    print(f"{step.name:8} {'ok' if good else 'FAILED'}  {time.monotonic() - started:.1f} s{note}")
    if not good:
        print("  " + output.replace("\n", "\n  "))
    sys.stdout.flush()
    return good


if __name__ == "__main__":
    sys.exit(main())
