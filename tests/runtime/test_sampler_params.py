"""Sampler settings: llama.cpp's defaults, a file's recommendations, and ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic.errors import KineticError, ModelFileError, UsageError
from kinetic.runtime.sampling import Sampler, SamplingParams
from kinetic.runtime.sampling.params import METADATA_KEYS


def test_defaults_are_llama_cpps() -> None:
    p = SamplingParams()
    assert (p.temperature, p.top_k, p.top_p, p.min_p, p.typical_p) == (0.8, 40, 0.95, 0.05, 1.0)
    assert (p.repeat_penalty, p.repeat_last_n, p.xtc_threshold) == (1.0, 64, 0.1)
    assert (p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n) == (
        0,
        1.75,
        2,
        -1,
    )
    assert (p.mirostat, p.mirostat_tau, p.mirostat_eta) == (0, 5.0, 0.1)
    assert not (p.greedy or p.penalizes or p.dry)


def test_a_file_recommends_and_the_caller_overrides() -> None:
    metadata = {
        "general.sampling.temp": np.float32(0.6),
        "general.sampling.top_k": np.uint32(20),
        "general.sampling.penalty_repeat": 1.05,
        "general.sampling.penalty_last_n": 128.0,
        "general.sampling.sequence": "kp",
        "general.name": "x",
    }
    p = SamplingParams.from_metadata(metadata)
    assert math.isclose(p.temperature, 0.6, rel_tol=1e-6)
    assert (p.top_k, p.repeat_penalty, p.repeat_last_n, p.top_p) == (20, 1.05, 128, 0.95)
    changed = p.with_overrides(top_k=5, temperature=None, seed=3)
    assert (changed.top_k, changed.seed, changed.temperature) == (5, 3, p.temperature)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("top_k", 2.5),
        ("top_k", True),
        ("repeat_penalty", 0.0),
        ("repeat_last_n", -2),
        ("mirostat", 3),
        ("seed", -1),
        ("seed", 2**64),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: math.inf}),
        ("logit_bias", {-3: 1.0}),
        ("dry_sequence_breakers", ((1,), ())),
        ("no_such_setting", 1),
    ],
)
def test_nonsense_is_a_usage_error_that_names_it(name: str, value: object) -> None:
    with pytest.raises(UsageError) as raised:
        SamplingParams().with_overrides(**{name: value})
    word = {"logit_bias": "bias", "dry_sequence_breakers": "DRY"}.get(name, name)
    assert word in str(raised.value)


@given(
    st.dictionaries(
        st.sampled_from(sorted(METADATA_KEYS)),
        st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.lists(st.integers())),
    )
)
def test_hostile_metadata_gives_params_or_one_sentence(metadata: dict[str, object]) -> None:
    try:
        SamplingParams.from_metadata(metadata)
    except ModelFileError as error:
        assert "general.sampling" in str(error)


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(KineticError, match="token 10"):
        Sampler(SamplingParams(logit_bias={10: 1.0}), 10)
