"""Which token comes next: the chain of samplers over one sequence.

    logit bias -> penalties -> DRY -> top-n-sigma -> top-k -> typical -> top-p -> min-p
    -> XTC -> temperature -> one draw;   with Mirostat: logit bias -> temperature -> Mirostat

Random numbers come from the place of the token in the answer (`philox.py`), and
`sample` changes nothing: only `accept` does, and `rollback` takes it back. So a drafted
and rejected token leaves no trace.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import InternalError, UsageError
from kinetic.runtime.philox import uniform
from kinetic.runtime.sampling import filters, mirostat
from kinetic.runtime.sampling.candidates import (
    NEGLIGIBLE,
    Candidates,
    Floats,
    draw,
    order,
    reciprocal,
    running_sum,
    weights,
)
from kinetic.runtime.sampling.dry import Dry
from kinetic.runtime.sampling.history import History, Mark
from kinetic.runtime.sampling.params import SamplingParams
from kinetic.runtime.sampling.penalties import penalize

LANE_TOKEN = 0
"""The lane of the draw that picks the token, Mirostat's included."""
LANE_XTC = 1


class Sampler:
    """Chooses tokens for one sequence. `choice` numbers the answers of one request.

    *Raises:* UsageError where the parameters name tokens that the vocabulary lacks.
    """

    def __init__(self, params: SamplingParams, n_vocab: int, choice: int = 0) -> None:
        self.params = params
        self.n_vocab = n_vocab
        self.choice = choice
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        """The seed in use: the given one, or a fresh one to be recorded."""
        beyond = [token for token in params.logit_bias if token >= n_vocab]
        if beyond:
            raise UsageError(
                f"The logit bias names token {beyond[0]}, but the vocabulary ends at {n_vocab - 1}."
            )
        bias = sorted(params.logit_bias.items())
        self._bias_ids = np.array([token for token, _ in bias], np.int32)
        self._bias = np.array([value for _, value in bias], np.float32)
        self._dry = Dry(params) if params.dry and not params.mirostat else None
        self._history = History()
        self._mu = np.float32(2 * params.mirostat_tau)
        self._pending: tuple[int, np.float32] | None = None

    # --- choosing ------------------------------------------------------------------------

    def sample(
        self, logits: Floats, position: int, allowed: NDArray[np.bool_] | None = None
    ) -> int:
        """The token at `position` of the answer; asking again gives it again.

        *Shapes:* logits `f32[V]`, allowed `bool[V]` (a grammar's mask).
        *Raises:* InternalError for logits that are not numbers; UsageError when every token
        is banned.
        """
        self._pending = None
        adjusted, best = self._adjust(logits, allowed)
        if self.params.greedy:
            return best
        c = self._cut(adjusted, position)
        index = draw(c, uniform(self.seed, position, LANE_TOKEN, self.choice))
        token = int(c.ids[index])
        if self.params.mirostat:
            error = mirostat.surprises(c)[index] - np.float32(self.params.mirostat_tau)
            moved = np.float32(self._mu - np.float32(self.params.mirostat_eta) * error)
            self._pending = token, moved
        return token

    def probabilities(
        self, logits: Floats, position: int = 0, allowed: NDArray[np.bool_] | None = None
    ) -> Floats:
        """The distribution that `sample` draws from: `f32[V]`, adding up to about 1."""
        out = np.zeros(self.n_vocab, np.float32)
        adjusted, best = self._adjust(logits, allowed)
        if self.params.greedy:
            out[best] = 1
            return out
        c = self._cut(adjusted, position)
        w = weights(c)
        out[c.ids] = w * reciprocal(running_sum(w)[-1])
        return out

    def _adjust(self, logits: Floats, allowed: NDArray[np.bool_] | None) -> tuple[Floats, int]:
        """Logits after bias, penalties and DRY, and the token of the largest; the caller's
        array is left alone."""
        if logits.shape != (self.n_vocab,) or logits.dtype != np.float32:
            raise InternalError(
                f"The sampler wants f32[{self.n_vocab}] logits, "
                f"not {logits.dtype}{list(logits.shape)}."
            )
        # argmax finds a NaN before any number.
        best = logits.argmax()
        if not logits[best] < np.inf:
            raise InternalError(
                "The model's logits hold NaN or infinity, so no token can be chosen; "
                "the model file is damaged or a kernel is wrong."
            )
        given, params, tokens = logits, self.params, self._history.tokens()
        penalized = params.penalizes and not params.mirostat and len(tokens) > 0
        if allowed is not None:
            logits = np.where(allowed, logits, np.float32(-np.inf))
        elif len(self._bias) or penalized or self._dry:
            logits = logits.copy()
        if len(self._bias):
            logits[self._bias_ids] += self._bias
        if penalized:
            penalize(logits, tokens, params)
        if self._dry:
            self._dry.apply(logits, tokens)
        if logits is not given:
            best = logits.argmax()
        if logits[best] == -np.inf:
            raise UsageError(
                "Every token is banned, by logit bias or by the grammar; allow at least one."
            )
        return logits, int(best)

    def _cut(self, logits: Floats, position: int) -> Candidates:
        """The candidates of the final draw, tempered."""
        p = self.params
        within = NEGLIGIBLE * max(1.0, p.temperature)
        if p.mirostat:
            c = filters.temper(order(logits, 0, within), p.temperature)
            return mirostat.cut(c, p.mirostat, self._mu, self.n_vocab)
        if p.typical_p < 1 or p.xtc_probability > 0:
            within = np.inf  # entropy and XTC look at the whole tail
        c = order(logits, p.top_k, within)
        if p.top_n_sigma > 0:
            # Whether it runs before or after top-k, the same tokens are left.
            floor = filters.sigma_floor(logits, p.top_n_sigma)
            c = c.first(int(np.count_nonzero(c.logits >= floor)))
        c = filters.typical(c, p.typical_p)
        c = filters.top_p(c, p.top_p)
        c = filters.min_p(c, p.min_p)
        if p.xtc_probability > 0 and p.xtc_threshold <= 0.5:
            chance = np.float32(uniform(self.seed, position, LANE_XTC, self.choice))
            if chance < np.float32(p.xtc_probability):
                c = filters.xtc(c, p.xtc_threshold)
        return filters.temper(c, p.temperature)

    # --- the sequence so far -------------------------------------------------------------

    def accept(self, token: int) -> None:
        """Append a token to the sequence, drawn or forced, prompt or answer."""
        if not 0 <= token < self.n_vocab:
            raise InternalError(f"Token {token} is outside the vocabulary of {self.n_vocab}.")
        if self._pending is not None and self._pending[0] == token:
            self._mu = self._pending[1]
        self._pending = None
        self._history.append(token)

    def accept_all(self, tokens: Iterable[int]) -> None:
        """Append a prompt."""
        ids = np.fromiter(tokens, np.int64)
        beyond = ids[(ids < 0) | (ids >= self.n_vocab)]
        if len(beyond):
            raise InternalError(f"Token {beyond[0]} is outside the vocabulary of {self.n_vocab}.")
        self._pending = None
        self._history.extend(ids)

    def checkpoint(self) -> Mark:
        """A point that `rollback` can return to."""
        return Mark(self._history.length, self._history.stamp(), self._mu)

    def rollback(self, mark: Mark) -> None:
        """Forget everything accepted since `mark`, as if it had never been."""
        self._history.cut(mark.length, mark.stamp)
        self._mu, self._pending = mark.mu, None

    def clone(self, choice: int | None = None) -> Sampler:
        """An independent sampler in the same state, for another `choice` if given."""
        twin = Sampler(
            self.params.with_overrides(seed=self.seed),
            self.n_vocab,
            self.choice if choice is None else choice,
        )
        twin._history, twin._mu, twin._pending = self._history.copy(), self._mu, self._pending
        return twin
