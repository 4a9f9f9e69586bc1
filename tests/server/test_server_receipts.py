"""`"receipt": true`: made beside other answers, verified alone."""

from __future__ import annotations

import json
import threading

import pytest

pytest.importorskip("nacl")
from nacl.signing import SigningKey

from kinetic.receipts.files import receipt_of
from kinetic.receipts.seal import check_signature
from kinetic.receipts.verify import load_again, rerun

KEY = SigningKey(b"k" * 32)
CHAT = {"messages": [{"role": "user", "content": "hi hi hi hi"}], "max_tokens": 24, "receipt": True}
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


def verified(raw, path):
    """The receipt as it arrived, made again alone on the class that is slowest and plainest."""
    record = receipt_of(json.dumps(raw).encode(), "r.json")
    model = load_again(record, path, threads=1, device_class="cpu-x86_64-scalar")
    try:
        verdict = rerun(record, model)
    finally:
        model.close()
    assert verdict.identical, verdict.lines
    return record


@pytest.fixture(scope="module")
def signing(serving, tiny, tiny_path):
    return serving(tiny, tiny_path, sign_key=KEY)


def test_made_on_a_busy_server_verified_alone(client, tiny_path):
    replies = {}

    def ask(i):
        replies[i] = client.post("/v1/chat/completions", {**CHAT, "seed": i, "temperature": 0.9})

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in (0, 3):
        assert replies[i].status == 200, replies[i].body
        record = verified(replies[i].json["receipt"], tiny_path)
        assert record["sampling"]["seed"] == i
        assert record["input"] == CHAT["messages"]
        assert record["model"]["path"] == record["model"]["file"] == tiny_path.name


def test_a_stream_ends_with_the_receipt_and_a_key_signs_it(signing, tiny_path):
    *_, last, done = signing.post("/v1/chat/completions", {**CHAT, "stream": True}).events
    assert done[1] == "[DONE]"
    record = verified(last[1]["receipt"], tiny_path)
    assert check_signature(record, "r.json") == bytes(KEY.verify_key).hex()


def test_several_choices_have_one_each(client, tiny_path):
    body = {"prompt": "hi hi", "max_tokens": 6, "n": 2, "seed": 3, "receipt": True}
    reply = client.post("/v1/completions", body).json
    assert "receipt" not in reply
    records = [verified(choice["receipt"], tiny_path) for choice in reply["choices"]]
    assert [r["sampling"]["choice"] for r in records] == [0, 1]
    assert records[0]["input"] == "hi hi"


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1, 2]}}}},
        {"grammar": 'root ::= "a" [bc]+'},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True},
        {"stop": ["e", "zz"], "logit_bias": {"3": -100, "4": 1}, "dry_multiplier": 0.7},
    ],
)
def test_forms_are_held_again(client, tiny_path, form):
    pytest.importorskip("llguidance")
    reply = client.post("/v1/chat/completions", {**CHAT, "seed": 5, "temperature": 1.2, **form})
    assert reply.status == 200, reply.body
    verified(reply.json["receipt"], tiny_path)


def test_no_receipt_of_nothing(client):
    body = {"prompt": "hi", "max_tokens": 0, "echo": True, "receipt": True}
    reply = client.post("/v1/completions", body)
    assert reply.status == 400 and "receipt" in reply.json["error"]["message"]
    assert "receipt" not in client.post("/v1/completions", {"prompt": "hi", "max_tokens": 1}).json
