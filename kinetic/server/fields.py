"""The request fields that several dialects share: sampling, stops, limits, salt."""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request

from kinetic.errors import KineticError
from kinetic.runtime.sampling import SamplingParams
from kinetic.server.errors import ApiError, from_kinetic
from kinetic.server.service import Service

Json = dict[str, Any]
Share = Annotated[float, Meta(ge=0, le=1)]
_MAX_STOPS = 64
_SET_BY_NAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"),
    *("dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau", "mirostat_eta"),
)


class SamplingFields(Struct, kw_only=True):
    """Sampling as llama-server spells it."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: int | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    top_n_sigma: float | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | list[Any] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None


class OpenAISampling(SamplingFields, kw_only=True):
    """The same within the bounds that OpenAI's API has."""

    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None


def sampling_params(fields: SamplingFields, service: Service) -> SamplingParams:
    """A request's settings over the server's.

    Raises: ApiError for values that make no sense.
    """
    given = {name: getattr(fields, name) for name in _SET_BY_NAME}
    if given["repeat_penalty"] is None:
        given["repeat_penalty"] = fields.repetition_penalty
    if fields.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(b for b in fields.dry_sequence_breakers if b)
    if fields.seed is not None and fields.seed >= 0:  # -1 is llama-server's "a fresh one"
        given["seed"] = fields.seed
    if fields.logit_bias:
        given["logit_bias"] = logit_bias(fields.logit_bias, service)
    try:
        return service.defaults.with_overrides(**given)
    except KineticError as error:
        raise from_kinetic(error) from None


def logit_bias(given: dict[str, float] | list[Any], service: Service) -> dict[int, float]:
    """`{"id": bias}`, or llama-server's `[[id or text, bias or false], ...]`.

    Raises: ApiError for what is no token.
    """
    pairs = given.items() if isinstance(given, dict) else given
    out: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ApiError(400, "logit_bias must hold pairs of a token and a bias", "logit_bias")
        token, bias = pair
        if bias is False:
            bias = -math.inf
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ApiError(400, f"the bias of token {token!r} must be a number", "logit_bias")
        value = -math.inf if isinstance(given, dict) and bias <= -100 else float(bias)
        if isinstance(given, dict) and not -100 <= bias <= 100:
            raise ApiError(400, f"logit_bias: {bias:g} is not between -100 and 100", "logit_bias")
        for token_id in _token_ids(token, isinstance(given, dict), service):
            out[token_id] = value
    return out


def _token_ids(token: object, by_number: bool, service: Service) -> list[int]:
    if isinstance(token, str) and by_number and token.isdecimal():
        token = int(token[:12])
    if isinstance(token, str) and not by_number:
        return service.model.tokenizer.encode(token)
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < service.n_vocab:
        raise ApiError(
            400,
            f"logit_bias: {token!r} is no token of this model, "
            f"whose tokens are 0 to {service.n_vocab - 1}",
            "logit_bias",
        )
    return [token]


def stops(given: str | list[str] | None) -> tuple[str, ...]:
    """The texts that end an answer.

    Raises: ApiError for too many.
    """
    found = (given,) if isinstance(given, str) else tuple(given or ())
    if len(found) > _MAX_STOPS:
        raise ApiError(400, f"stop takes at most {_MAX_STOPS} texts; give fewer", "stop")
    return tuple(text for text in found if text)


def salt_of(request: Request, given: str | None = None) -> str:
    """What separates users: prompt states are shared only between equal salts."""
    key = request.scope.get("kinetic.api_key", "")
    if not key and not given:
        return ""
    return hashlib.sha256(f"{key}\0{given or ''}".encode("utf-8", "replace")).hexdigest()


def check_length(prompt_ids: list[int], service: Service) -> None:
    """Raises: ApiError where a prompt is empty or leaves no room in the context."""
    if not prompt_ids:
        raise ApiError(400, "the prompt is empty; give some text to go on from", "prompt")
    n, n_ctx = len(prompt_ids), service.n_ctx
    if n >= n_ctx:
        raise ApiError(
            400,
            f"prompt is too long: {n} tokens > {n_ctx - 1} maximum; the context holds {n_ctx} "
            "tokens with the answer: shorten the prompt, or start the server with a larger -c",
            code="context_length_exceeded",
            extra={"n_prompt_tokens": n, "n_ctx": n_ctx},
        )


def encode(value: object) -> bytes:
    """A value as JSON."""
    return msgspec.json.encode(value)
