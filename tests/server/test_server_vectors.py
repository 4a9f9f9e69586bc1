"""Embeddings and reranking over HTTP, in every dialect that has them."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from support.tiny_encoders import RANK, tiny_encoder

from kinetic.api import Model


@pytest.fixture(scope="module")
def embedder(serving, tmp_path_factory):
    path = tiny_encoder("bert", tmp_path_factory.mktemp("m") / "bert.gguf")
    model = Model.load(path, threads=1)
    yield serving(model, path)
    model.close()


@pytest.fixture(scope="module")
def ranker(serving, tmp_path_factory):
    path = tiny_encoder("bert", tmp_path_factory.mktemp("m") / "rank.gguf", pooling=RANK)
    model = Model.load(path, threads=1)
    yield serving(model, path)
    model.close()


def vectors(reply):
    return [np.array(d["embedding"], np.float32) for d in reply.json["data"]]


def test_embeddings(embedder):
    """EM-01, EM-05, EM-06."""
    reply = embedder.post("/v1/embeddings", {"input": ["a cat", "a dog"]})
    one, two = vectors(reply)
    assert [d["index"] for d in reply.json["data"]] == [0, 1]
    assert abs(np.linalg.norm(one) - 1) < 1e-4 and (one != two).any()
    assert reply.json["usage"]["prompt_tokens"] > 0
    (alone,) = vectors(embedder.post("/v1/embeddings", {"input": "a cat"}))
    assert (alone == one).all()
    packed = embedder.post("/v1/embeddings", {"input": "a cat", "encoding_format": "base64"})
    data = base64.b64decode(packed.json["data"][0]["embedding"])
    assert (np.frombuffer(data, "<f4") == one).all()
    ids = embedder.post("/tokenize", {"content": "a cat", "add_special": True}).json["tokens"]
    for given in (ids, [ids]):
        assert (vectors(embedder.post("/v1/embeddings", {"input": given}))[0] == one).all()
    (short,) = vectors(embedder.post("/v1/embeddings", {"input": "a cat", "dimensions": 8}))
    assert len(short) == 8 and abs(np.linalg.norm(short) - 1) < 1e-4


def test_other_dialects_give_the_same_vectors(embedder):
    (one,) = vectors(embedder.post("/v1/embeddings", {"input": "a cat"}))
    llama = embedder.post("/embedding", {"content": "a cat"}).json
    assert (np.array(llama[0]["embedding"][0], np.float32) == one).all()
    ollama = embedder.post("/api/embed", {"input": ["a cat", "a dog"]}).json
    assert (np.array(ollama["embeddings"][0], np.float32) == one).all()
    assert len(ollama["embeddings"]) == 2 and ollama["prompt_eval_count"] > 0
    older = embedder.post("/api/embeddings", {"prompt": "a cat"}).json
    assert (np.array(older["embedding"], np.float32) == one).all()
    assert embedder.post("/api/show", {}).json["capabilities"] == ["embedding"]


@pytest.mark.parametrize(
    "body",
    [
        {"input": []},
        {"input": [""] * 257},
        {"input": [1.5]},
        {"input": [["a"]]},
        {"input": [10**9]},
        {"input": "a", "dimensions": 0},
        {"input": "a", "dimensions": 10**6},
        {"input": "a", "encoding_format": "hex"},
        {"input": "word " * 5000},
    ],
)
def test_what_has_no_vector_is_refused(embedder, body):
    assert embedder.post("/v1/embeddings", body).status == 400


@pytest.mark.parametrize("body", [{}, {"input": None}, {"input": []}, {"input": ""}])
def test_ollama_without_input_gives_no_vectors(embedder, client, body):
    assert embedder.post("/api/embed", body).json["embeddings"] == []
    assert embedder.post("/api/embeddings", body).json["embedding"] == []
    assert client.post("/api/embed", body).status == 400


def test_an_embedding_model_says_where_it_is_served(embedder, ranker):
    for path in ("/v1/chat/completions", "/completion", "/api/chat", "/v1/messages"):
        messages = [{"role": "user", "content": "x"}]
        body = {"messages": messages, "prompt": "x", "max_tokens": 1}
        reply = embedder.post(path, body)
        assert reply.status == 400 and b"/v1/embeddings" in reply.body
        assert b"/v1/rerank" in ranker.post(path, body).body
    asked = {"query": "q", "documents": ["a"]}
    assert b"/v1/embeddings" in embedder.post("/v1/rerank", asked).body


def test_rerank(ranker):
    """RR-01, RR-03."""
    documents = ["Boil water and steep the leaves.", {"text": "Tea is grown."}, "Trains leave."]
    body = {"query": "how to brew tea", "documents": documents}
    results = ranker.post("/v1/rerank", body).json["results"]
    scores = [r["relevance_score"] for r in results]
    assert scores == sorted(scores, reverse=True) and all(0 <= s <= 1 for s in scores)
    assert sorted(r["index"] for r in results) == [0, 1, 2]
    top = ranker.post("/reranking", {**body, "top_n": 1, "return_documents": True}).json
    (best,) = top["results"]
    texts = [d if isinstance(d, str) else d["text"] for d in documents]
    assert best["document"] == {"text": texts[best["index"]]}
    assert best["index"] == results[0]["index"] and top["usage"]["total_tokens"] > 0
    for top_n in (0, 99):
        assert len(ranker.post("/v1/rerank", {**body, "top_n": top_n}).json["results"]) == 3
    tei = ranker.post("/rerank", {"query": "how to brew tea", "texts": texts}).json
    assert [r["index"] for r in tei] == [r["index"] for r in results]
    raw = ranker.post("/rerank", {**body, "raw_scores": True}).json["results"]
    assert [r["index"] for r in raw] == [r["index"] for r in results]
    assert ranker.post("/v1/rerank", {"query": "q", "documents": []}).status == 400
