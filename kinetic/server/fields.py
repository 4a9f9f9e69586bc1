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


_CHAIN: dict[str, tuple[str, Json]] = {
    "penalties": ("e", {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}),
    "dry": ("d", {"dry_multiplier": 0.0}),
    "top_n_sigma": ("s", {"top_n_sigma": -1.0}),
    "top_k": ("k", {"top_k": 0}),
    "typ_p": ("y", {"typical_p": 1.0}),
    "top_p": ("p", {"top_p": 1.0}),
    "min_p": ("m", {"min_p": 0.0}),
    "xtc": ("x", {"xtc_probability": 0.0}),
    "temperature": ("t", {"temperature": 1.0}),
}
"""The samplers in the order that they run in, in llama-server's words: the letter, and what
turns one off."""
_OTHER_NAMES = {
    "top-n-sigma": "top_n_sigma",
    "top-k": "top_k",
    "typical": "typ_p",
    "typ-p": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
    "top-p": "top_p",
    "nucleus": "top_p",
    "min-p": "min_p",
    "temp": "temperature",
}


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
    samplers: str | list[str] | None = None
    dynatemp_range: Annotated[float, Meta(ge=0)] | None = None
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
    if fields.dynatemp_range:
        raise ApiError(
            400, "dynatemp_range is not supported; leave it out, or give 0", "dynatemp_range"
        )
    if fields.samplers is not None:
        given |= _left_out(fields.samplers)
    if fields.logit_bias:
        given["logit_bias"] = logit_bias(fields.logit_bias, service)
    try:
        return service.defaults.with_overrides(**given)
    except KineticError as error:
        raise from_kinetic(error) from None


def _left_out(samplers: str | list[str]) -> Json:
    """The settings that turn off what a list of samplers leaves out; the order is the engine's.

    Raises: ApiError for a name that is no sampler, or another order.
    """
    if isinstance(samplers, str):
        by_letter = {letter: name for name, (letter, _) in _CHAIN.items()}
        names = [by_letter.get(letter, letter) for letter in samplers]
    else:
        names = [_OTHER_NAMES.get(name, name) for name in samplers]
    order = list(_CHAIN)
    unknown = next((name for name in names if name not in _CHAIN), None)
    if unknown is not None:
        raise ApiError(
            400,
            f"samplers names {unknown[:40]!r}, which is no sampler here; there are "
            f"{', '.join(order)}",
            "samplers",
        )
    if names != [name for name in order if name in names]:
        raise ApiError(
            400, f"samplers must be in the order that they run in: {', '.join(order)}", "samplers"
        )
    out: Json = {}
    for name, (_, off) in _CHAIN.items():
        if name not in names:
            out |= off
    return out


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


def refuse_receipt(given: bool | None) -> None:
    """Raises: ApiError where a route is asked for a receipt that gives none."""
    if given:
        raise ApiError(
            400,
            "receipt is not supported here; ask /v1/chat/completions or /v1/completions for one",
            "receipt",
        )


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
