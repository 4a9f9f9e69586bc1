"""Hosts, origins, keys: who may use the server."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8080", "LOCALHOST:9"])
def test_names_of_this_computer_are_answered(client, host):
    assert client.get("/v1/models", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example:8080", "127.0.0.1.evil.example", "", "0.0.0.0"])
@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/props", "/"])
def test_a_rebound_name_is_refused(client, host, path):
    reply = client.get(path, Host=host, Origin="http://localhost")
    assert reply.status == 403 and b"--allow-host" in reply.body


def test_named_hosts_are_let_in(serving, tiny, tiny_path):
    client = serving(tiny, tiny_path, allow_hosts=("models.example",))
    assert client.get("/v1/models", Host="models.example:80").status == 200
    assert client.get("/v1/models", Host="evil.example").status == 403


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/api/chat"])
def test_pages_of_other_sites_are_refused(client, path):
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "x"):
        reply = client.post(path, {}, Origin=origin)
        assert reply.status == 403 and b"--allow-origin" in reply.body
        assert "access-control-allow-origin" not in reply.headers
        asked = client.send("OPTIONS", path, headers={"Origin": origin})
        assert "access-control-allow-origin" not in asked.headers


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000", "http://127.0.0.1", "chrome-extension://abc", "app://obsidian.md"],
)
def test_pages_of_this_computer_and_apps_are_let_in(client, origin):
    reply = client.chat() if not origin else client.get("/v1/models", Origin=origin)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == origin
    assert "access-control-allow-credentials" not in reply.headers
    asked = client.send(
        "OPTIONS",
        "/v1/chat/completions",
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type,x-stainless-lang",
        },
    )
    assert asked.status == 204
    assert "x-stainless-lang" in asked.headers["access-control-allow-headers"]


def test_named_origins_are_let_in(serving, tiny, tiny_path):
    client = serving(tiny, tiny_path, allow_origins=("https://chat.example",))
    assert client.get("/v1/models", Origin="https://chat.example").status == 200
    assert client.get("/v1/models", Origin="https://other.example").status == 403


def test_keys(serving, tiny, tiny_path):
    client = serving(tiny, tiny_path, api_keys=("one", "two"))
    assert client.get("/health").status == 200
    assert client.get("/v1/health").status == 200
    for path in ("/v1/models", "/slots", "/metrics", "/api/tags", "/nope"):
        assert client.get(path).status == 401
        assert client.get(path, Authorization="Bearer three").status == 401
    for headers in (
        {"Authorization": "Bearer one"},
        {"Authorization": "bearer two"},
        {"X-Api-Key": "two"},
    ):
        assert client.get("/v1/models", **headers).status == 200
    refused = client.get("/v1/models")
    assert refused.json["error"]["type"] == "authentication_error"
    refused = client.post("/v1/messages", {})
    assert refused.json["error"]["type"] == "authentication_error"
    # A key also stands in for the check of names: who knows it may come by any of them.
    assert client.get("/v1/models", Host="models.example", **{"X-Api-Key": "one"}).status == 200


def test_keys_and_salts_separate_users(client):
    from starlette.requests import Request

    from kinetic.server.fields import salt_of

    def salt(key: str, given: str | None) -> str:
        return salt_of(Request({"type": "http", "kinetic.api_key": key}), given)

    assert salt("", None) == ""
    assert len({salt("", None), salt("a", None), salt("b", None), salt("a", "x")}) == 4


def test_errors_name_no_insides(client):
    for path in ("/v1/chat/completions", "/completion", "/api/chat", "/v1/messages"):
        reply = client.post(path, {"messages": 5, "prompt": 5})
        assert reply.status == 400
        for word in (b"Traceback", b"/kinetic/", b".py", b"/tmp"):
            assert word not in reply.body
