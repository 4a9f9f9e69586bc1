"""The sampler against plain float64 models of each filter, and its promises about state."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kinetic.errors import InternalError, UsageError
from kinetic.runtime.sampling import Sampler, SamplingParams
from kinetic.runtime.sampling.candidates import Candidates, order, weights
from kinetic.runtime.sampling.filters import sigma_floor

V = 200
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)


def make_logits(seed: int, size: int = V, scale: float = 3.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, scale, size).astype(np.float32)


def softmax(x: NDArray[np.floating]) -> NDArray[np.float64]:
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def kept(params: SamplingParams, logits: NDArray[np.float32]) -> set[int]:
    return set(np.flatnonzero(Sampler(params, len(logits)).probabilities(logits)).tolist())


# --- single filters ---------------------------------------------------------------------------


def test_plain_sampling_is_softmax() -> None:
    logits = make_logits(0)
    got = Sampler(PLAIN, V).probabilities(logits)
    assert np.allclose(got, softmax(logits), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("temperature", [0.3, 1.7, 20.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    logits = make_logits(1)
    got = Sampler(PLAIN.with_overrides(temperature=temperature), V).probabilities(logits)
    assert np.allclose(got, softmax(logits.astype(float) / temperature), rtol=1e-5, atol=1e-7)


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    logits = make_logits(1)
    for temperature in (1e-6, 1e-38, 1e-45, 1e-300):
        sampler = Sampler(PLAIN.with_overrides(temperature=temperature), V)
        assert sampler.sample(logits, 0) == logits.argmax()


@pytest.mark.parametrize("k", [1, 2, 40, V - 1])
def test_top_k_keeps_the_k_largest(k: int) -> None:
    logits = make_logits(2)
    assert kept(PLAIN.with_overrides(top_k=k), logits) == set(np.argsort(-logits)[:k].tolist())


def test_top_k_of_zero_below_or_the_vocabulary_keeps_all() -> None:
    logits = make_logits(2)
    every = [kept(PLAIN.with_overrides(top_k=k), logits) for k in (0, -1, V, 10 * V)]
    assert every == [set(range(V))] * 4


def test_ties_go_to_the_lower_id() -> None:
    logits = np.float32([0.0, 1.0, -0.0, 1.0, 0.0, -1.0])
    assert order(logits, 0).ids.tolist() == [1, 3, 0, 2, 4, 5]
    assert kept(PLAIN.with_overrides(top_k=3), logits) == {0, 1, 3}
    greedy = Sampler(PLAIN.with_overrides(temperature=0.0), 6)
    assert greedy.sample(logits, 0) == 1


@given(st.integers(0, 2**32), st.integers(1, 3000), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_the_fast_order_is_the_order(seed: int, size: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.integers(-30, 30, size).astype(np.float32) / 4
    logits[rng.random(size) < 0.3] = -np.inf
    logits[rng.integers(size)] = 1.0
    want = sorted(range(size), key=lambda i: (-logits[i], i))[: k or size]
    want = [i for i in want if logits[i] > -np.inf]
    got = order(logits, k)
    assert got.ids.tolist() == want and np.array_equal(got.logits, logits[want])


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_fewest_that_reach_p(p: float) -> None:
    logits = make_logits(3)
    ranked = np.argsort(-logits)
    inside = np.cumsum(softmax(logits)[ranked])
    want = set(ranked[: int(np.searchsorted(inside, p)) + 1].tolist())
    assert kept(PLAIN.with_overrides(top_p=p), logits) == want


@pytest.mark.parametrize("p", [0.01, 0.3, 1.0])
def test_min_p_compares_with_the_best(p: float) -> None:
    logits = make_logits(4)
    probability = softmax(logits)
    want = set(np.flatnonzero(probability >= p * probability.max() * (1 - 1e-9)).tolist())
    assert kept(PLAIN.with_overrides(min_p=p), logits) == want


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
def test_typical_keeps_the_least_odd_surprises(p: float) -> None:
    logits = make_logits(5)
    probability = softmax(logits)
    surprise = -np.log(probability)
    odd = np.abs(surprise - (probability * surprise).sum())
    nearest = np.argsort(odd)
    inside = np.cumsum(probability[nearest])
    want = set(nearest[: int(np.searchsorted(inside, p, side="right")) + 1].tolist())
    assert kept(PLAIN.with_overrides(typical_p=p), logits) == want


@pytest.mark.parametrize("n", [0.5, 1.0, 2.0])
def test_top_n_sigma(n: float) -> None:
    logits = make_logits(6)
    logits[::7] = -np.inf
    usable = logits[logits > -np.inf].astype(float)
    want = set(np.flatnonzero(logits >= logits.max() - n * usable.std()).tolist())
    assert kept(PLAIN.with_overrides(top_n_sigma=n), logits) == want


def test_the_sums_of_top_n_sigma_are_the_contracts_chains() -> None:
    logits = make_logits(7, 5003)

    def chained(x: NDArray[np.float32]) -> np.float32:
        chains = [np.float32(0)] * 32
        for i, term in enumerate(x):
            chains[i % 32] += term
        while len(chains) > 1:
            half = len(chains) // 2
            chains = [chains[i] + chains[i + half] for i in range(half)]
        return chains[0]

    inverse = np.float32(1 / 5003)
    mean = chained(logits) * inverse
    variance = chained((logits - mean) * (logits - mean)) * inverse
    floor = sigma_floor(logits, 1.0)
    assert abs(floor - (logits.max() - np.sqrt(variance))) <= 2 * np.spacing(np.float32(4))


def test_xtc_drops_the_likely_but_the_least_of_them() -> None:
    logits = np.log(np.float32([0.4, 0.3, 0.2, 0.06, 0.04]))
    always = PLAIN.with_overrides(xtc_probability=1.0)
    assert kept(always.with_overrides(xtc_threshold=0.15), logits) == {2, 3, 4}
    assert kept(always.with_overrides(xtc_threshold=0.35), logits) == {0, 1, 2, 3, 4}
    assert kept(always.with_overrides(xtc_threshold=0.6), logits) == {0, 1, 2, 3, 4}
    sometimes = Sampler(PLAIN.with_overrides(xtc_probability=0.3, xtc_threshold=0.15), 5)
    dropped = sum(sometimes.probabilities(logits, place)[0] == 0 for place in range(2000))
    assert 540 < dropped < 660


def test_greedy_ignores_the_filters() -> None:
    logits = make_logits(8)
    greedy = SamplingParams(temperature=0, typical_p=0.1, xtc_probability=1.0)
    assert kept(greedy, logits) == {int(logits.argmax())}


# --- penalties and bias -----------------------------------------------------------------------


def test_penalties_are_llama_cpps() -> None:
    logits = make_logits(9)
    params = PLAIN.with_overrides(
        repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, repeat_last_n=5
    )
    sampler = Sampler(params, V)
    sampler.accept_all([11, 3, 3, 5, 3, 7])  # 11 is out of the window
    want = logits.astype(float)
    for token, count in Counter([3, 3, 5, 3, 7]).items():
        want[token] = want[token] / 1.3 if want[token] > 0 else want[token] * 1.3
        want[token] -= count * 0.2 + 0.4
    assert np.allclose(sampler.probabilities(logits), softmax(want), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("window", [0, -1, 1000])
def test_the_window_of_penalties(window: int) -> None:
    sampler = Sampler(PLAIN.with_overrides(presence_penalty=50.0, repeat_last_n=window), V)
    sampler.accept_all(range(100))
    probability = sampler.probabilities(np.zeros(V, np.float32))
    assert (probability[:100].sum() < 1e-6) == (window != 0)


def test_logit_bias_adds_and_bans() -> None:
    logits = make_logits(10)
    params = PLAIN.with_overrides(logit_bias={4: 2.5, 9: float("-inf")})
    want = logits.astype(float)
    want[4] += 2.5
    want[9] = -np.inf
    assert np.allclose(Sampler(params, V).probabilities(logits), softmax(want), 1e-5, 1e-7)


def test_the_callers_logits_are_never_written() -> None:
    logits = make_logits(11)
    logits.setflags(write=False)
    params = SamplingParams(
        seed=1, repeat_penalty=1.2, dry_multiplier=1.0, logit_bias={1: 1.0}, top_n_sigma=2.0
    )
    for variant in (params, SamplingParams(seed=1), params.with_overrides(temperature=0)):
        sampler = Sampler(variant, V)
        sampler.accept_all([1, 2, 3, 1, 2, 3])
        sampler.sample(logits, 0)
        sampler.sample(logits, 0, np.arange(V) > 3)


# --- draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [PLAIN, SamplingParams(seed=11, typical_p=0.9)])
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    logits = make_logits(12, 40, 1.5)
    sampler = Sampler(params, 40)
    want = sampler.probabilities(logits) * 6000
    counts = np.bincount([sampler.sample(logits, place) for place in range(6000)], minlength=40)
    assert not np.any(counts[want == 0])
    likely = want > 5
    chi_square = ((counts - want) ** 2 / np.maximum(want, 1))[likely].sum()
    freedom = int(likely.sum())
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_a_draw_depends_on_seed_place_and_choice_alone() -> None:
    logits = make_logits(13)
    one, two = Sampler(PLAIN, V), Sampler(PLAIN, V)
    for place in range(30):
        one.sample(make_logits(place), place)
    assert [one.sample(logits, p) for p in range(50)] == [two.sample(logits, p) for p in range(50)]
    runs = {
        tuple(Sampler(PLAIN.with_overrides(seed=s), V, c).sample(logits, p) for p in range(20))
        for s, c in ((7, 0), (7, 1), (8, 0), (7 + (1 << 32), 0))
    }
    assert len(runs) == 4


def test_a_missing_seed_is_fresh_and_recorded() -> None:
    params = PLAIN.with_overrides()
    object.__setattr__(params, "seed", None)
    first, second = Sampler(params, V), Sampler(params, V)
    assert first.seed != second.seed
    again = Sampler(PLAIN.with_overrides(seed=first.seed), V)
    logits = make_logits(14)
    assert [first.sample(logits, p) for p in range(9)] == [
        again.sample(logits, p) for p in range(9)
    ]


@given(st.integers(0, 2**31), st.sampled_from([0.5, 1.0, 1.4]), st.sampled_from([0.3, 0.95, 1.0]))
@settings(max_examples=40, deadline=None)
def test_leaving_out_the_negligible_changes_no_draw(seed: int, heat: float, p: float) -> None:
    logits = make_logits(seed, 3000, 6.0)
    params = PLAIN.with_overrides(temperature=heat, top_p=p, seed=seed)
    pruned = Sampler(params, 3000)
    whole = Sampler(params.with_overrides(top_k=2999), 3000)  # top-k never prunes
    assert [pruned.sample(logits, i) for i in range(20)] == [
        whole.sample(logits, i) for i in range(20)
    ]
    assert np.array_equal(weights(order(logits, 0))[:9], weights(order(logits, 0, 17.0))[:9])


# --- Mirostat ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_steers_towards_its_target(version: int) -> None:
    params = SamplingParams(
        seed=5, mirostat=version, mirostat_tau=3.0, mirostat_eta=0.1, temperature=1.0
    )
    sampler, rng = Sampler(params, 2000), np.random.default_rng(0)
    zipf = -1.1 * np.log(np.arange(1, 2001))
    observed = []
    for place in range(600):
        logits = (zipf + rng.normal(0, 0.1, 2000)).astype(np.float32)
        token = sampler.sample(logits, place)
        observed.append(-np.log2(sampler.probabilities(logits, place)[token]))
        sampler.accept(token)
    assert abs(np.mean(observed[200:]) - 3.0) < 0.3


def test_mirostat_2_cuts_at_mu_and_moves_it_only_on_accept() -> None:
    params = SamplingParams(seed=1, mirostat=2, mirostat_tau=2.0, temperature=1.0, top_k=1)
    logits = make_logits(15)
    probability = softmax(logits)
    sampler = Sampler(params, V)
    want = set(np.flatnonzero(-np.log2(probability) <= 4.0).tolist())
    assert set(np.flatnonzero(sampler.probabilities(logits)).tolist()) == want
    token = sampler.sample(logits, 0)
    assert token == sampler.sample(logits, 0)
    before = sampler.checkpoint()
    sampler.accept(token)
    assert sampler.checkpoint().mu != before.mu
    sampler.rollback(before)
    sampler.sample(logits, 0)
    sampler.accept((token + 1) % V)  # a forced token says nothing about surprise
    assert sampler.checkpoint().mu == before.mu


def test_mirostat_takes_flat_and_single_distributions() -> None:
    for version in (1, 2):
        params = SamplingParams(seed=1, mirostat=version, temperature=1.0)
        assert 0 <= Sampler(params, V).sample(np.zeros(V, np.float32), 0) < V
        lonely = np.full(V, -np.inf, np.float32)
        lonely[5] = 1.0
        assert Sampler(params, V).sample(lonely, 0) == 5


# --- state ------------------------------------------------------------------------------------

STATEFUL = SamplingParams(
    seed=3, temperature=1.2, repeat_penalty=1.2, frequency_penalty=0.3, dry_multiplier=0.9
)
TOKENS = st.lists(st.integers(0, 30), max_size=25)


@given(TOKENS, TOKENS, TOKENS, st.sampled_from([STATEFUL, SamplingParams(seed=3, mirostat=2)]))
@settings(max_examples=50, deadline=None)
def test_a_rollback_is_as_if_it_had_never_been(
    kept_tokens: list[int], lost: list[int], more: list[int], params: SamplingParams
) -> None:
    logits = make_logits(16, 31)
    plain, tried = Sampler(params, 31), Sampler(params, 31)
    plain.accept_all(kept_tokens)
    tried.accept_all(kept_tokens)
    mark = tried.checkpoint()
    for place, token in enumerate(lost):
        tried.accept(tried.sample(logits, place) if token % 2 else token)
    tried.rollback(mark)
    for place, token in enumerate(more):
        assert plain.sample(logits, place) == tried.sample(logits, place)
        plain.accept(token)
        tried.accept(token)
    assert np.array_equal(plain.probabilities(logits), tried.probabilities(logits))
    assert plain.checkpoint().mu == tried.checkpoint().mu


def test_a_stale_mark_is_refused() -> None:
    sampler = Sampler(STATEFUL, V)
    outer = sampler.checkpoint()
    sampler.accept_all([1, 2])
    inner = sampler.checkpoint()
    sampler.rollback(outer)
    sampler.accept_all([4, 5, 6])
    with pytest.raises(InternalError, match="roll back"):
        sampler.rollback(inner)
    sampler.rollback(outer)


def test_a_clone_goes_its_own_way() -> None:
    sampler = Sampler(STATEFUL, V)
    sampler.accept_all(range(20))
    twin, other = sampler.clone(), sampler.clone(choice=1)
    logits = make_logits(17)
    assert np.array_equal(twin.probabilities(logits), sampler.probabilities(logits))
    assert twin.sample(logits, 4) == sampler.sample(logits, 4)
    draws = [[s.sample(logits, p) for p in range(30)] for s in (sampler, other)]
    assert draws[0] != draws[1]
    before = sampler.probabilities(logits)
    twin.accept_all([7] * 300)
    assert np.array_equal(sampler.probabilities(logits), before)


# --- hostile logits ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [PLAIN, SamplingParams(temperature=0)])
def test_logits_that_are_no_numbers_are_an_error(bad: float, params: SamplingParams) -> None:
    logits = make_logits(18)
    logits[150] = bad
    with pytest.raises(InternalError, match="NaN or infinity"):
        Sampler(params, V).sample(logits, 0)


def test_wrong_shapes_and_tokens_are_an_error() -> None:
    sampler = Sampler(PLAIN, V)
    for logits in (np.zeros(V + 1, np.float32), np.zeros(V, np.float64)):
        with pytest.raises(InternalError, match="logits"):
            sampler.sample(logits, 0)  # type: ignore[arg-type]
    for token in (-1, V):
        with pytest.raises(InternalError, match="outside"):
            sampler.accept(token)


def test_a_mask_limits_the_choice_and_may_not_forbid_everything() -> None:
    logits = make_logits(19)
    allowed = np.zeros(V, bool)
    allowed[[3, 8]] = True
    for params in (PLAIN, SamplingParams(seed=1), SamplingParams(temperature=0)):
        assert Sampler(params, V).sample(logits, 0, allowed) in (3, 8)
        with pytest.raises(UsageError, match="banned"):
            Sampler(params, V).sample(logits, 0, np.zeros(V, bool))


def test_extreme_logits_do_no_harm() -> None:
    logits = np.float32([3e38, -3e38, 0.0, -np.inf, 3e38])
    typical = PLAIN.with_overrides(typical_p=0.999)
    for params in (PLAIN, typical, SamplingParams(seed=2), SamplingParams(seed=2, mirostat=2)):
        probability = Sampler(params, 5).probabilities(logits)
        assert np.allclose(probability, [0.5, 0, 0, 0, 0.5])


def test_candidates_never_run_out() -> None:
    one = Candidates(np.int32([4]), np.float32([0.5]))
    assert one.first(0).ids.tolist() == [4]
