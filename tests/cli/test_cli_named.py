"""Paths that a command line names: one rule for what is wrong with them."""

from __future__ import annotations

import pytest
from support.tiny_models import tiny_model

from kinetic.cli.named import new_file, read_text, readable
from kinetic.cli.speeds import answer_speed, speed
from kinetic.errors import UsageError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model("llama", tmp_path_factory.mktemp("named") / "tiny.gguf")


def test_a_new_file_never_costs_another(tmp_path):
    old, source = tmp_path / "old", tmp_path / "source"
    old.write_text("x")
    source.write_text("x")
    assert new_file(tmp_path / "new", "it") == tmp_path / "new"
    assert new_file(old, "it", forced=True, force="--yes") == old
    assert new_file(old, "it", ours=lambda path: True) == old
    for place, more, told in (
        (old, {}, "exists; give another name"),
        (old, {"force": "--yes"}, "exists; --yes replaces it"),
        (source, {"sources": [source], "forced": True}, "source itself"),
        (tmp_path, {"forced": True}, "is a folder; name a file in it"),
        (tmp_path / "no" / "x", {"forced": True}, "there is no folder"),
        (old / "x", {"forced": True}, "there is no folder"),
        (tmp_path / ("n" * 300), {}, "give a shorter name"),
    ):
        with pytest.raises(UsageError, match=told):
            new_file(place, "it", **more)


def test_what_cannot_be_read_comes_with_advice(tmp_path):
    (tmp_path / "odd").write_bytes(b"ab\xff")
    for read in (read_text, readable):
        with pytest.raises(UsageError, match=r"--x .*none cannot be read: .*; check its name"):
            read(tmp_path / "none", "--x")
        with pytest.raises(UsageError, match=r"is a folder; name a file in it|Is a directory; it"):
            read(tmp_path, "--x")
    with pytest.raises(UsageError, match="is not UTF-8 text at byte 2; convert it first"):
        read_text(tmp_path / "odd", "--x")
    with pytest.raises(UsageError, match="more than the allowed 2 bytes"):
        read_text(tmp_path / "odd", "--x", 2)


MODEL = object()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("run", "none.gguf", "hi"), "there is no file none.gguf"),
        (("run", MODEL, "hi", "--lora", "nope"), "--lora nope cannot be read"),
        (("run", MODEL, "hi", "--lora-scaled", "nope:1"), "--lora nope cannot be read"),
        (("run", MODEL, "hi", "--sign-key", "k", "--receipt", "r"), "cannot be read"),
        (("run", MODEL, "hi", "--grammar-file", "nope"), "--grammar-file nope cannot be read"),
        (("run", MODEL, "hi", "--chat-template-file", "bad.jinja"), "bad.jinja: the chat template"),
        (("chat", MODEL, "--history", "."), "is a folder; name a file in it"),
        (("chat", MODEL, "--history", "no/h"), "there is no folder no"),
        (("quantize", MODEL, ".", "Q8_0"), "is a folder; name a file in it"),
        (("quantize", MODEL, "no/q.gguf", "Q8_0"), "there is no folder no"),
        (("quantize", MODEL, "q.gguf", "Q8_0", "0"), "takes a whole number from 1 to 4096"),
        (("quantize", MODEL, "q.gguf", "Q8_0", "-3"), "takes a whole number from 1 to 4096"),
        (("quantize", MODEL, "q.gguf", "Q8_0", "many"), "takes a whole number from 1 to 4096"),
        (("quantize", MODEL, "q.gguf", "Q8_0", "--imatrix", "nope"), "--imatrix nope cannot be"),
        (("quantize", MODEL, "q.gguf", "Q8_0", "--tensor-type", "(=q8_0"), "'(' is none"),
        (("ktc", MODEL, "-o", "."), "is a folder; name a file in it"),
        (("ktc", MODEL, "-o", "no/x.ktc"), "there is no folder no"),
        (("imatrix", MODEL, "text.txt", "-o", "."), "is a folder; name a file in it"),
        (("imatrix", MODEL, "nope.txt"), "nope.txt cannot be read"),
        (("imatrix", MODEL, "text.txt", "-o", "text.txt", "--yes"), "text.txt itself"),
        (("perplexity", MODEL, "nope.txt"), "nope.txt cannot be read"),
        (("perplexity", MODEL, "--kl-divergence", "nope"), "--kl-divergence nope cannot be read"),
        (("perplexity", MODEL, "text.txt", "--kl-divergence-base", MODEL), "tiny.gguf itself"),
        (("perplexity", MODEL, "text.txt", "--kl-divergence-base", "text.txt"), "exists; give"),
        (("verify-receipt", "nope.json"), "nope.json cannot be read"),
        (("verify", "nope.ktc"), "there is no file nope.ktc"),
        (("info", "a", "b"), "'b' is a word too many"),
    ],
)
def test_a_wrong_path_makes_the_line_wrong(kinetic, model, tmp_path, monkeypatch, line, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some text")
    (tmp_path / "bad.jinja").write_text("{% if %}")
    before = model.read_bytes()
    done = kinetic(*(model if word is MODEL else word for word in line))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert model.read_bytes() == before


def test_a_damaged_file_is_not_the_lines_fault(kinetic, model, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-100])
    done = kinetic("info", cut)
    assert done.returncode == 1
    assert "get the file again" in done.stderr
    assert kinetic("run", model, "hi", "--lora", cut).returncode == 1


def test_a_cache_that_cannot_be_is_one_notice(kinetic, model, tmp_path):
    (tmp_path / "file").touch()
    words = ("run", model, "hi", "-n", "2", "-t", "1", "--cache-dir", tmp_path / "file")
    done = kinetic(*words)
    assert done.returncode == 0
    assert done.stderr.count("cannot be written") == 1
    assert "cannot be written" not in kinetic(*words, "--no-prompt-cache").stderr


def test_wrong_settings_are_told_by_every_command(kinetic, model, tmp_path):
    (tmp_path / "file").touch()
    done = kinetic("info", model, env={"KINETIC_DEBUG": "-1"})
    assert done.returncode == 2
    assert "takes a number from 0 to 6" in done.stderr
    done = kinetic("models", env={"KINETIC_MODELS": str(tmp_path / "file")})
    assert done.returncode == 2
    assert "which is no folder" in done.stderr


def test_a_speed_that_no_clock_saw_is_left_out():
    assert answer_speed(1, 0.5) == "1 token"
    assert answer_speed(3, 0.5) == "3 tokens at 4.0 tok/s"
    assert speed(2, 2, 0) == "2 tokens"
