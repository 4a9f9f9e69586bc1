"""What `kinetic run` takes for a prompt, before any model is loaded."""

from __future__ import annotations

import pytest


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.gguf"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("line", "input", "says"),
    [
        ([], "", "stdin held no prompt"),
        ([], " \n", "stdin held no prompt"),
        ([], b"caf\xe9", "not UTF-8 text at byte 3"),
        (["hi", "-p", "hello"], "", "given twice"),
        (["hi", "--raw", "--system", "Be brief."], "", "--raw sends no system prompt"),
        (["hi", "--chat-template-kwargs", "{"], "", "takes a JSON object"),
        (["hi", "--chat-template-kwargs", "[" * 99999], "", "takes a JSON object"),
        (["hi", "--chat-template-kwargs", "[1]"], "", "takes a JSON object"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_a_usage_error(kinetic, model, line, input, says):
    done = kinetic("run", model, *line, input=input)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_argument_bytes_that_are_not_text_are_told(kinetic, model):
    done = kinetic("run", model, "caf\udce9")
    assert done.returncode == 2
    assert "not UTF-8 text at character 3" in done.stderr


def test_a_file_holds_the_prompt(kinetic, model, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"caf\xe9")
    for line, says in (
        (["-f", tmp_path / "p.txt"], "is not UTF-8 text at byte 3"),
        (["--file", tmp_path / "none"], "cannot be read: No such file"),
        (["-f", tmp_path / "p.txt", "hi"], "given twice: by --file and as 'hi'"),
        (["-f", "x", "-p", "hi"], "given twice: by --prompt and by --file"),
    ):
        done = kinetic("run", model, *line)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert says in done.stderr
