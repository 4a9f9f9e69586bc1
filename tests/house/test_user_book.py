"""The users' part of the book, against the programs it tells of."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts"))

messages = import_module("messages")
record_quick_start = import_module("record_quick_start")


def test_the_recording_is_of_the_commands_that_the_script_runs():
    page = (DOCS / "quick-start.md").read_text(encoding="utf-8")
    begin, end = record_quick_start.BEGIN, record_quick_start.END
    recording = page.partition(begin)[2].partition(end)[0]
    assert tuple(re.findall(r"^\$ (.+)$", recording, re.MULTILINE)) == record_quick_start.COMMANDS
    assert "\x1b" not in recording


def test_the_python_of_the_switch_page_runs(tmp_path, capsys):
    from support.tiny_models import tiny_model

    tiny_model("llama", tmp_path / "model.gguf", seed=1)
    text = (DOCS / "switch.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code.replace("model.gguf", (tmp_path / "model.gguf").as_posix()), {})
    assert capsys.readouterr().out


def test_every_error_class_has_its_part_of_the_messages():
    import kinetic.errors

    own = {name for name, value in vars(kinetic.errors).items() if isinstance(value, type)}
    own -= {"InternalError"}  # bugs, which no user can do anything about
    assert own <= set(messages.KINDS)
    texts = {message.text for message in messages.messages()}
    assert len(texts) > 100
    assert "name a model file, as in kinetic \u2026 model.gguf." in texts


@pytest.mark.parametrize("page", ["troubleshooting.md"])
def test_messages_that_troubleshooting_quotes_exist(page):
    code = "\n".join(message.text for message in messages.messages())
    for folder in messages.PACKAGES:
        code += "\n".join(
            file.read_text(encoding="utf-8") for file in sorted((ROOT / folder).rglob("*.py"))
        )
    code = re.sub(r"\"\s*\n\s*f?\"", "", code)  # sentences that are cut over lines
    text = (DOCS / page).read_text(encoding="utf-8")
    # Cells of `It says`: words between the ellipses must stand in the code.
    for quoted in re.findall(r"^\| `([^`]+)`", text, re.MULTILINE):
        for words in re.split(r"\.\.\.|\b[NM]\b", quoted):
            words = words.strip(" ?;:")
            if len(words.split()) > 2:
                assert words in code, words
