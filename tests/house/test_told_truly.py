"""What the README and the list of dependencies claim, against the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGES = ("kinetic", "ir", "codegen", "runtime", "families")


def status(part: str) -> str:
    """The README's line about one part, what the table says now."""
    line = next(line for line in README.splitlines() if line.startswith(f"| {part} |"))
    return line.split("|")[2]


def test_the_readme_lists_the_families_there_are():
    from kinetic.families import SUPPORTED

    assert set(re.findall(r"`([^`]+)`", status("Architectures"))) == set(SUPPORTED)


def test_the_readme_counts_the_weight_formats():
    from kinetic.ir.quant import FORMATS

    assert int(status("Weight formats").split(":")[0]) == len(FORMATS)


def test_the_readme_lists_the_commands():
    from kinetic.cli import COMMANDS

    assert re.findall(r"`([^`]+)`", status("Commands")) == list(COMMANDS)


def test_the_readmes_python_runs(tmp_path, capsys):
    from support.tiny_models import tiny_model

    tiny_model("llama", tmp_path / "model.gguf", seed=1)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code.replace("model.gguf", (tmp_path / "model.gguf").as_posix()), {})
    assert capsys.readouterr().out


def test_every_dependency_is_imported_and_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = page.split("## To run")[1].split("## Extras")[0]
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for dependency in project["dependencies"]:
        (name,) = re.findall(r"^[\w-]+", dependency)
        module = {"pynacl": "nacl"}.get(name, name)
        assert re.search(rf"^\s*(import|from) {module}\b", code, re.MULTILINE), name
        assert f"| `{name}` |" in explained
    assert len(project["dependencies"]) == len(re.findall(r"^\| `", explained, re.MULTILINE))
