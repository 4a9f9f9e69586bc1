"""Reading a request's body: bounded in size and time, and checked against its declared shape."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from kinetic.server.errors import ApiError
from kinetic.server.service import Service

T = TypeVar("T")

_AT = re.compile(r"(?P<what>.*) - at `(?P<path>.*)`$", re.DOTALL)
_GOT = re.compile(r"^Expected (?P<want>.*)$")


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.app.state.service
    return service


async def read_bytes(request: Request) -> bytes:
    """The raw body.

    Raises: ApiError 408 where it does not arrive in time, 413 where it is too big.
    """
    options = service_of(request).options
    close = {"Connection": "close"}
    too_big = ApiError(
        413,
        f"the body is larger than {options.max_body} bytes; send less, or raise --max-body",
        headers=close,
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > options.max_body:
        raise too_big
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not taken; send the JSON as it is")
    data = bytearray()
    try:
        async with asyncio.timeout(options.arrival):
            async for chunk in request.stream():
                data += chunk
                if len(data) > options.max_body:
                    raise too_big
    except TimeoutError:
        raise ApiError(
            408,
            f"the body did not arrive within {options.arrival:g} seconds; send it again",
            headers=close,
        ) from None
    return bytes(data)


async def read(request: Request, shape: type[T]) -> T:
    """The body as a value of `shape`.

    Raises: ApiError for what is not JSON or has the wrong types.
    """
    return decode(await read_bytes(request), shape)


def decode(data: bytes, shape: type[T]) -> T:
    """JSON as a value of `shape`.

    Raises: ApiError 400.
    """
    if not data.strip():
        raise ApiError(400, "the body is empty; send a JSON object")
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=shape)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}; check what is sent") from None
    except (RecursionError, MemoryError):
        raise ApiError(400, "the body is nested too deep; send a flatter JSON object") from None


def invalid(words: str, under: str = "") -> ApiError:
    """What msgspec found wrong, in everyone's words; `under` is the field that it looked at."""
    found = _AT.match(words)
    what, path = (found["what"], found["path"]) if found else (words, "$")
    param = f"{under}{path.removeprefix('$')}".removeprefix(".")
    if missing := re.match(r"Object missing required field `(.*)`", what):
        param = f"{param}.{missing[1]}".removeprefix(".")
        return ApiError(400, f"{param} is missing; give it", param=param)
    if what == "Number out of range" or what == "Integer value out of range":
        return ApiError(400, f"{param or 'a number'} is out of range; give a smaller number")
    want = _GOT.match(what)
    text = want["want"].replace("`", "") if want else what
    if not param:
        return ApiError(400, f"the body must be a JSON object: expected {text}")
    verb = "must be" if want else "is wrong:"
    return ApiError(400, f"{param} {verb} {_plain(text)}", param=param)


def _plain(text: str) -> str:
    """msgspec's words for a bound in everyone's: `int >= 1` is `at least 1`."""
    if bound := re.match(r"(?:int|float)(?: \| null)? ([<>]=) (-?[\d.]+)$", text):
        number = bound[2].removesuffix(".0")
        return f"at {'least' if bound[1] == '>=' else 'most'} {number}"
    names = {
        "str": "a string",
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
    }
    names |= {"array": "a list", "object": "an object"}
    want, _, got = text.partition(", got ")
    kinds = [names.get(kind, kind) for kind in want.split(" | ") if kind != "null"]
    return " or ".join(kinds) + (f", not {names.get(got, got)}" if got else "")
