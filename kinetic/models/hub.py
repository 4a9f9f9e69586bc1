"""What a hub says about a repository: its files with sizes and hashes, and conversions of it.

The hub is Hugging Face, or the mirror that HF_ENDPOINT names; HF_TOKEN goes to that host and to
no other, redirects included.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urlsplit

import httpx2

from kinetic._version import __version__
from kinetic.errors import NetworkError, UsageError
from kinetic.models.choice import RemoteFile

DEFAULT_ENDPOINT = "https://huggingface.co"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_TIMEOUT = httpx2.Timeout(30.0, connect=15.0)
_MAX_ANSWER = 64 << 20


@dataclass(frozen=True)
class Repository:
    """A repository at one revision. The last three are what the hub read from its GGUF files."""

    name: str
    revision: str
    files: tuple[RemoteFile, ...]
    architecture: str = ""
    context_length: int = 0
    parameters: int = 0


class Hub:
    """A connection to the hub. *Raises*, from every call: NetworkError with what to do."""

    def __init__(self, endpoint: str, token: str | None = None) -> None:
        self.endpoint, self.token = endpoint.rstrip("/"), token
        self.host = urlsplit(self.endpoint).netloc
        self.authorization = {"Authorization": f"Bearer {token}"} if token else {}
        """What requests to the hub itself carry; the client drops it at a redirect elsewhere."""
        # Proxies and certificates come from the environment: HTTPS_PROXY, NO_PROXY,
        # SSL_CERT_FILE.
        self.client = httpx2.Client(
            headers={"User-Agent": f"kinetic/{__version__}"},
            timeout=_TIMEOUT,
            follow_redirects=True,
            limits=httpx2.Limits(max_connections=32, max_keepalive_connections=16),
        )

    @classmethod
    def from_environment(cls) -> Self:
        """The hub that HF_ENDPOINT and HF_TOKEN describe.

        *Raises*: UsageError for an endpoint that is not a web address.
        """
        endpoint = os.environ.get("HF_ENDPOINT", "").strip() or DEFAULT_ENDPOINT
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(
                f"HF_ENDPOINT is {endpoint!r}; it takes an address such as {DEFAULT_ENDPOINT}."
            )
        return cls(endpoint, os.environ.get("HF_TOKEN", "").strip() or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()

    def repository(self, name: str) -> Repository:
        """The files of a repository, as of now."""
        check_repo_name(name)
        read = self._json(f"/api/models/{name}", [("blobs", "true")], name)
        if not isinstance(read, dict) or not isinstance(read.get("siblings"), list):
            raise self._nonsense(name)
        files = tuple(file for file in map(_file, read["siblings"]) if file is not None)
        revision = read.get("sha")
        gguf = read.get("gguf")
        facts: Mapping[str, object] = gguf if isinstance(gguf, dict) else {}
        return Repository(
            name=name,
            revision=revision
            if isinstance(revision, str) and _SHA1.fullmatch(revision)
            else "main",
            files=files,
            architecture=_text(facts.get("architecture")) or _model_type(read),
            context_length=_number(facts.get("context_length")),
            parameters=_number(facts.get("total")),
        )

    def conversions_of(self, name: str, limit: int = 5) -> list[str]:
        """Repositories with GGUF conversions of this one, those downloaded most first."""
        check_repo_name(name)
        query = [
            ("filter", f"base_model:quantized:{name}"),
            ("filter", "gguf"),
            ("sort", "downloads"),
            ("limit", str(limit)),
        ]
        read = self._json("/api/models", query, name)
        if not isinstance(read, list):
            raise self._nonsense(name)
        ids = [_text(item.get("id")) for item in read if isinstance(item, dict)]
        return [found for found in ids if _REPO.fullmatch(found)][:limit]

    def file_url(self, repo: str, revision: str, path: str) -> str:
        """Where the bytes of a file are asked for."""
        return f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"

    def _json(self, path: str, query: list[tuple[str, str]], repo: str) -> object:
        try:
            url, token = self.endpoint + path, self.authorization
            with self.client.stream("GET", url, params=tuple(query), headers=token) as response:
                if response.status_code != 200:
                    raise refusal(response, repo, self)
                body = bytearray()
                for block in response.iter_bytes():
                    body += block
                    if len(body) > _MAX_ANSWER:
                        raise self._nonsense(repo)
                content_type = response.headers.get("content-type", "")
        except httpx2.HTTPError as error:
            raise unreachable(error, self) from None
        try:
            read: object = json.loads(body)
        except (ValueError, RecursionError):
            if "html" in content_type:
                raise web_page(self.host) from None
            raise self._nonsense(repo) from None
        return read

    def _nonsense(self, repo: str) -> NetworkError:
        return NetworkError(
            f"{self.host} answered about {repo} with something that is not a list of files; "
            "check HF_ENDPOINT, or try again later."
        )


def check_repo_name(name: str) -> None:
    """Refuse what cannot be a repository.

    *Raises*: UsageError.
    """
    if not _REPO.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a repository; write org/repo, as in "
            "kinetic pull ggml-org/gemma-3-1b-it-GGUF."
        )


def refusal(response: httpx2.Response, repo: str, hub: Hub) -> NetworkError:
    """The error of an answer that is not the one that was asked for."""
    status, page = response.status_code, f"{hub.endpoint}/{repo}"
    token = f"get one at {hub.endpoint}/settings/tokens and set HF_TOKEN to it"
    if status == 401 and hub.token:
        return NetworkError(f"{hub.host} does not accept the token in HF_TOKEN (401); {token}.")
    if status == 401:
        return NetworkError(
            f"{hub.host} does not show {repo} without a token (401): check the name; if the "
            f"repository is private or gated, accept its terms at {page}, {token}."
        )
    if status == 403:
        more = "" if hub.token else ", and set HF_TOKEN"
        return NetworkError(
            f"{hub.host} refuses {repo} (403): accept the terms at {page} with your account{more}."
        )
    if status in (404, 410):
        return NetworkError(f"{hub.host} has no {repo} ({status}); check the name at {page}.")
    if status == 429:
        return NetworkError(
            f"{hub.host} asks to slow down (429): too many requests from here; wait "
            f"{_wait_text(response)} and repeat the command."
        )
    return NetworkError(
        f"{hub.host} answered {status} {response.reason_phrase} about {repo}; try again later."
    )


def unreachable(error: httpx2.HTTPError, hub: Hub) -> NetworkError:
    """The error of a connection that did not come about or broke."""
    reason = str(error) or type(error).__name__
    if "certificate" in reason.lower():
        return NetworkError(
            f"cannot reach {hub.host}: {reason}; if the network has certificates of its own, set "
            "SSL_CERT_FILE to their file."
        )
    return NetworkError(
        f"cannot reach {hub.host}: {reason}; check the network connection, HTTPS_PROXY and "
        "HF_ENDPOINT, and repeat the command."
    )


def web_page(host: str) -> NetworkError:
    """The error of a page for people where data was asked for."""
    return NetworkError(
        f"{host} answered with a web page instead of data; is this network waiting for you to "
        "log in? Open a page in a browser, then repeat the command."
    )


def retry_after(response: httpx2.Response) -> float | None:
    """Seconds that the server asks to wait, None where it does not say."""
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def _wait_text(response: httpx2.Response) -> str:
    seconds = retry_after(response)
    return "a few minutes" if seconds is None else f"{seconds:.0f} seconds"


def _file(item: object) -> RemoteFile | None:
    if not isinstance(item, dict) or not isinstance(item.get("rfilename"), str):
        return None
    lfs = item.get("lfs")
    large: Mapping[str, object] = lfs if isinstance(lfs, dict) else {}
    sha = _text(large.get("sha256")) or _text(large.get("oid")).removeprefix("sha256:")
    blob = _text(item.get("blobId"))
    return RemoteFile(
        path=item["rfilename"],
        size=_number(large.get("size")) or _number(item.get("size")),
        sha256=sha if _SHA256.fullmatch(sha) else "",
        blob_id=blob if _SHA1.fullmatch(blob) else "",
    )


def _model_type(read: Mapping[str, object]) -> str:
    config = read.get("config")
    return _text(config.get("model_type")) if isinstance(config, dict) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
