"""What a hub answers is untrusted: any JSON gives a repository or an error, nothing else."""

from __future__ import annotations

import json
from contextlib import suppress

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetic.errors import KineticError, NetworkError, UsageError
from kinetic.models.choice import Budget, choose
from kinetic.models.download import targets
from kinetic.models.hub import DEFAULT_ENDPOINT, Hub

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**70) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(["m-Q4_K_M.gguf", "a/../../m.gguf", ".gguf", "m-00001-of-00002.gguf", ""])
FILES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "rfilename": NAMES | VALUES,
            "size": VALUES,
            "blobId": VALUES,
            "lfs": VALUES | st.fixed_dictionaries({"sha256": VALUES, "size": VALUES}),
        },
    ),
    max_size=4,
)
REPOSITORIES = VALUES | st.fixed_dictionaries(
    {"siblings": VALUES | FILES}, optional={"sha": VALUES, "gguf": VALUES, "config": VALUES}
)


def hub_that_answers(body: bytes, status: int = 200, kind: str = "application/json") -> Hub:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": kind})

    hub = Hub("http://hub.example")
    hub.client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return hub


@given(REPOSITORIES)
@settings(max_examples=50, deadline=None)
def test_any_json_is_a_repository_or_an_error(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("m")
    with hub_that_answers(json.dumps(value).encode()) as hub, suppress(KineticError):
        repository = hub.repository("org/repo")
        chosen = choose(
            *("org/repo", repository.files),
            quant=None,
            file=None,
            projector=True,
            budget=Budget(1 << 40, "much"),
        )
        for target in targets(chosen, folder):
            assert target.path.parent == folder
            assert target.path.name not in ("", ".", "..")


@given(st.binary(max_size=60))
@settings(max_examples=20, deadline=None)
def test_any_bytes_are_an_error(body):
    with hub_that_answers(body) as hub, suppress(KineticError):
        hub.repository("org/repo")
    with hub_that_answers(body) as hub, suppress(KineticError):
        hub.conversions_of("org/repo")


def test_deep_json_does_not_overflow():
    with hub_that_answers(b"[" * 200_000) as hub, pytest.raises(NetworkError, match="not a list"):
        hub.repository("org/repo")


@pytest.mark.parametrize("status", [204, 301, 400, 418, 500, 503])
def test_other_statuses_are_told(status):
    with hub_that_answers(b"", status) as hub, pytest.raises(NetworkError, match=str(status)):
        hub.repository("org/repo")


def test_conversions_that_are_no_repositories_are_left_out():
    body = json.dumps([{"id": "a/b"}, {"id": "../x"}, {"id": 3}, 4, {"id": "c/d\x1b"}]).encode()
    with hub_that_answers(body) as hub:
        assert hub.conversions_of("org/repo") == ["a/b"]


def test_the_endpoint_comes_from_the_environment(monkeypatch):
    with Hub.from_environment() as hub:
        assert (hub.endpoint, hub.authorization) == (DEFAULT_ENDPOINT, {})
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/hub/")
    monkeypatch.setenv("HF_TOKEN", " secret ")
    with Hub.from_environment() as hub:
        assert hub.endpoint == "https://mirror.example/hub"
        assert hub.authorization == {"Authorization": "Bearer secret"}
        url = hub.file_url("o/r", "main", "a b/c#d.gguf")
        assert url == "https://mirror.example/hub/o/r/resolve/main/a%20b/c%23d.gguf"
    monkeypatch.setenv("HF_ENDPOINT", "mirror.example")
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        Hub.from_environment()
