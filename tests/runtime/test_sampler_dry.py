"""DRY against a naive model of its rule."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetic.runtime.sampling import Sampler, SamplingParams
from kinetic.runtime.sampling.dry import Dry, match_lengths

V = 12
ON = SamplingParams(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1, dry_multiplier=0.8, dry_base=1.5
)


def penalties(params: SamplingParams, history: list[int]) -> np.ndarray:
    logits = np.zeros(V, np.float32)
    Dry(params).apply(logits, np.array(history, np.int32))
    return -logits


def naive(params: SamplingParams, history: list[int]) -> np.ndarray:
    """The rule by hand: the longest earlier match of the end, for each token that followed."""
    h = history if params.dry_penalty_last_n < 0 else history[-params.dry_penalty_last_n :]
    n, limit, found = len(h), len(h), False
    for start in range(n - 1, -1, -1):
        tails = [b[1:] for b in params.dry_sequence_breakers if b[0] == h[start]]
        fits = [t for t in tails if tuple(h[start + 1 : start + 1 + len(t)]) == t]
        if fits and not found:
            limit, found = n - 1 - start - max(map(len, fits)), True
    out = np.zeros(V)
    if n <= params.dry_allowed_length or limit < params.dry_allowed_length:
        return out
    single = {b[0] for b in params.dry_sequence_breakers if len(b) == 1}
    for end in range(n - 1):
        length = 0
        while length <= end and h[end - length] == h[n - 1 - length]:
            length += 1
        length = min(length, limit)
        if length >= params.dry_allowed_length and h[end + 1] not in single:
            power = params.dry_base ** (length - params.dry_allowed_length)
            out[h[end + 1]] = max(out[h[end + 1]], params.dry_multiplier * power)
    return out


def test_a_repetition_is_penalized_by_its_length() -> None:
    got = penalties(ON, [1, 2, 3, 4, 9, 1, 2, 3])
    assert np.allclose(got, np.eye(V)[4] * 0.8 * 1.5)
    assert not penalties(ON, [1, 2, 3, 4, 9, 8, 7, 3]).any()  # one token is no repetition


def test_a_breaker_ends_a_match() -> None:
    history = [1, 2, 3, 4, 9, 1, 2, 3]
    assert not penalties(ON.with_overrides(dry_sequence_breakers=((3,),)), history).any()
    cut = penalties(ON.with_overrides(dry_sequence_breakers=((1,),)), history)
    assert np.allclose(cut, np.eye(V)[4] * 0.8)
    # The token that would follow is itself a breaker.
    assert not penalties(ON.with_overrides(dry_sequence_breakers=((4,),)), history).any()


def test_long_loops_are_capped_and_quick() -> None:
    got = penalties(ON.with_overrides(dry_base=4.0), [5] * 20_000)
    assert got[5] > 1e37 and np.isfinite(got[5] / 2)
    lengths = match_lengths(np.array([1, 1, 1, 1], np.int32), 3)
    assert lengths.tolist() == [1, 2, 3]


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(0, 4),
    st.sampled_from([-1, 0, 3, 10, 100]),
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_any_history_follows_the_rule(
    history: list[int], allowed: int, last_n: int, breakers: list[tuple[int, ...]]
) -> None:
    params = ON.with_overrides(
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=tuple(breakers),
    )
    sampler = Sampler(params, V)
    sampler.accept_all(history)
    got = sampler.probabilities(np.zeros(V, np.float32))
    weight = np.exp(-naive(params, history)) if last_n else np.ones(V)
    assert np.allclose(got, weight / weight.sum(), rtol=1e-4, atol=1e-6)
