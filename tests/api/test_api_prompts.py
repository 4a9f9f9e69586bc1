"""What the API makes of prompts and of settings that need the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_models import tiny_model

from kinetic.api import Model, SamplingParams
from kinetic.errors import UsageError
from kinetic.runtime.cpus import usable_cpus
from kinetic.text.breakers import token_sequences


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    tiny_model("qwen2", path, formats="F32", n_ctx=96)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINETIC_CACHE_DIR", str(path.parent / "cache"))
        loaded = Model.load(path, threads=1)
    yield loaded
    loaded.close()


def test_a_raw_prompt_may_hold_control_tokens(model: Model) -> None:
    control = next(t for t in model.tokenizer.special_tokens if model.tokenizer.is_control(t.id))
    text = control.text if isinstance(control.text, str) else control.text.decode()
    raw = model.encode_prompt("a" + text + "b", raw=True)
    assert control.id in raw[1:]
    assert control.id not in model.encode_prompt("a" + text + "b")[1:]


def test_breakers_are_every_way_a_text_can_appear(model: Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer.n_tokens > 64
    found = token_sequences(tokenizer, ["e"])
    assert found == tuple(
        (t,) for t in range(tokenizer.n_tokens) if b"e" in tokenizer.token_bytes(t)
    )
    for first, *rest in token_sequences(tokenizer, ["the"]):
        joined = b"".join(tokenizer.token_bytes(t) for t in (first, *rest))
        assert b"the" in joined
    assert token_sequences(tokenizer, ["", "e"]) == found


def test_dry_takes_its_breakers_as_text(model: Model) -> None:
    prompt = model.encode_prompt("abcabcabc", raw=True)

    def answer(**changes: object) -> list[int]:
        params = SamplingParams(temperature=0, dry_multiplier=50.0, dry_allowed_length=1)
        return [p.token_id for p in model.generate(prompt, params.with_overrides(**changes), 16)]

    every = tuple(chr(c) for c in range(32, 127))
    plain = [p.token_id for p in model.generate(prompt, SamplingParams(temperature=0), 16)]
    assert answer(dry_sequence_breakers=every) != answer(dry_sequence_breakers=())
    # Where every printable text breaks, DRY has nothing left to punish among printable ones.
    assert answer(dry_sequence_breakers=()) != plain


def test_a_template_variable_of_the_prompt_is_refused(model: Model) -> None:
    from kinetic.text.chat_template import ChatTemplate

    model.chat_template = ChatTemplate("{{ messages[0].content }}{{ x }}", model.tokenizer)
    try:
        for name in ("messages", "tools", "self", "add_generation_prompt"):
            with pytest.raises(UsageError, match=name):
                model.encode_prompt("a", template_kwargs={name: 1})
        with_x = model.encode_prompt("a", template_kwargs={"x": "b"})
    finally:
        model.chat_template = None
    assert with_x == model.encode_prompt("ab")


def test_more_threads_than_cpus_are_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_CACHE_DIR", str(tmp_path / "cache"))
    path = tiny_model("llama", tmp_path / "m.gguf", formats="F32")
    loaded = Model.load(path, threads=1000)
    assert loaded.threads == len(usable_cpus())
    loaded.close()
    assert "1000 threads" in capsys.readouterr().err
