"""`kinetic run --grammar` and `--json-schema` hold an answer; what cannot be held is told."""

from __future__ import annotations

import json
import re

import pytest

tiny_models = pytest.importorskip("support.tiny_models")
pytest.importorskip("llguidance")

FREE = ("--temp", "1.5", "-s", "3", "-t", "1")
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 3}}, "required": ["n"], "additionalProperties": false}'  # noqa: E501


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny_models.tiny_model("llama", path, seed=1)
    return path


def test_a_grammar_holds_the_answer(kinetic, model, tmp_path):
    text = 'root ::= "<" [a-z]{2,4} ">"'
    (tmp_path / "g.gbnf").write_text(text)
    inline = kinetic("run", model, "hello", "--grammar", text, *FREE)
    assert re.fullmatch("<[a-z]{2,4}>\n", inline.stdout), inline.stderr
    filed = kinetic("run", model, "hello", "--grammar-file", tmp_path / "g.gbnf", *FREE)
    assert filed.stdout == inline.stdout


def test_a_schema_holds_the_answer(kinetic, model, tmp_path):
    (tmp_path / "s.json").write_text(SCHEMA)
    for form in (("-j", SCHEMA), ("--json-schema-file", tmp_path / "s.json")):
        done = kinetic("run", model, "hello", *form, *FREE)
        assert 3 <= json.loads(done.stdout)["n"] <= 99, done.stderr


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (("--grammar", "root ::= ("), "--grammar: the grammar is wrong at line 1"),
        (("--grammar-file", "no-such-file"), "cannot be read"),
        (("-j", "{"), "takes JSON"),
        (("-j", '{"not": {}}'), "not cannot be enforced"),
        (("-j", "{}", "--grammar", "root ::= .x"), "not both"),
    ],
)
def test_what_cannot_be_held_is_told(kinetic, model, form, words):
    done = kinetic("run", model, "hello", *form, *FREE)
    assert done.returncode and "Traceback" not in done.stderr
    assert words.replace("\\", "") in done.stderr.replace("/not ", "not "), done.stderr
