"""Recurrent models answer alike with guesses, prompt states and shared steps, and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.runtime.sampling.params import SamplingParams


@pytest.mark.parametrize("arch", ["lfm2", "granitehybrid", "falcon-h1", "qwen35"])
def test_answers_do_not_depend_on_what_makes_them_fast(arch: str, tmp_path: Path) -> None:
    path = tiny_model(arch, tmp_path / "m.gguf", formats="Q8_0", n_vocab=320)
    found = []
    for off in (set(), {"rad1", "warm-start", "convoy", "torque"}):
        model, answers = Model.load(path, off=off), []
        for times in (1, 20, 20, 12, 20):  # the second one's states serve the later ones
            ids = model.encode_prompt("the rain in spain " * times + "falls", raw=True)
            pieces = model.generate(ids, SamplingParams(temperature=0.0), max_tokens=50)
            answers.append([piece.token_id for piece in pieces])
        found.append(answers)
        model.close()
    assert found[0] == found[1]
    assert found[0][1] == found[0][2] == found[0][4] and len(found[0][1]) > 10
