"""`Model.embed` and `Model.rank`: unit vectors, scores from 0 to 1, and what cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.tiny_encoders import CTX, LAST, RANK, VOCAB, tiny_encoder
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.embeddings import normalized
from kinetic.errors import ContextError, UsageError
from kinetic.families import is_embedding
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.ops import arithmetic as ar

WORDS = ["a cat", "the dog is here", "rain on the roof", ""]
SMALL = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": VOCAB, "formats": "Q8_0"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model.load(tiny_encoder("bert", tmp_path_factory.mktemp("m") / "bert.gguf"), threads=2)
    yield model
    model.close()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_encoder("bert", tmp_path_factory.mktemp("m") / "rank.gguf", pooling=RANK)
    model = Model.load(path, threads=2)
    yield model
    model.close()


def qwen3(folder: Path, pooling: int, **metadata: object) -> Path:
    keys = {"qwen3.pooling_type": pooling} | {k.replace("__", "."): v for k, v in metadata.items()}
    return tiny_model("qwen3", folder / "m.gguf", metadata=keys, **SMALL)


def test_a_vector_is_of_length_1_and_its_texts_alone(bert: Model) -> None:
    """EM-06; the words are the same alone, with others, and as token ids."""
    assert bert.is_embedding and bert.pooling == "mean"
    together = bert.embed(WORDS)
    for text, vector in zip(WORDS, together, strict=True):
        assert abs(float(np.linalg.norm(vector)) - 1) < 1e-6
        assert (bert.embed([text])[0] == vector).all()
        ids = bert.tokenizer.encode(text, add_special=True)
        assert ids[0] == 2 and ids[-1] == 3
        assert (bert.embed([ids])[0] == vector).all()
    raw = bert.embed(WORDS, normalize=False)
    assert (normalized(raw[1]) == together[1]).all() and (raw[1] != together[1]).any()
    assert bert.embed([]) == []


def test_more_texts_than_a_step_holds(bert: Model) -> None:
    texts = [[2, *range(10, 10 + n), 3] for n in range(1, 100)]
    together = bert.embed(texts)
    assert (together[98] == bert.embed(texts[98:])[0]).all()
    assert (together[40] == bert.embed(texts[40:41])[0]).all()


def test_a_text_up_to_the_context_works_and_a_longer_one_is_refused(bert: Model) -> None:
    """EM-03: whatever the size of a step; the refusal names both numbers."""
    whole = [2, *[20] * (CTX - 2), 3]
    assert bert.n_ctx == CTX
    bert.embed([whole])
    with pytest.raises(
        ContextError, match=f"text 1 has {CTX + 1} tokens and the model takes {CTX}"
    ):
        bert.embed([whole, [*whole, 3]])
    long = "a " * 600
    cut = bert.embed([long], truncate=True)[0]
    ids = bert.tokenizer.encode(long, add_special=True)
    assert (cut == bert.embed([[*ids[: CTX - 1], 3]])[0]).all()


def test_a_context_beyond_the_table_of_positions_is_cut(tmp_path: Path) -> None:
    model = Model.load(tiny_encoder("bert", tmp_path / "m.gguf"), threads=1, ctx_size=4096)
    assert model.n_ctx == CTX
    model.close()


def test_dimensions_are_cut_and_normalized_again(bert: Model) -> None:
    """EM-05."""
    full, cut = bert.embed(["a cat"])[0], bert.embed(["a cat"], dimensions=8)[0]
    assert cut.shape == (8,) and abs(float(np.linalg.norm(cut)) - 1) < 1e-6
    assert np.allclose(cut * np.linalg.norm(full[:8]), full[:8], atol=1e-6)
    for wrong in (0, 65):
        with pytest.raises(UsageError, match=f"{wrong} dimensions .* vectors have 64"):
            bert.embed(["a cat"], dimensions=wrong)


def test_what_cannot_be_embedded_is_named(bert: Model, reranker: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="text 1 has no tokens"):
        bert.embed(["a", []])
    with pytest.raises(UsageError, match=f"text 0 holds {VOCAB}, .* 0 to {VOCAB - 1}"):
        bert.embed([[1, VOCAB]])
    with pytest.raises(UsageError, match="no classifier"):
        bert.rank("q", ["d"])
    with pytest.raises(UsageError, match="reranking model"):
        reranker.embed(["a"])
    with pytest.raises(UsageError, match="generates no text"):
        list(bert.generate([1]))
    text = Model.load(tiny_model("qwen3", tmp_path / "t.gguf", **SMALL), threads=1)
    assert not text.is_embedding and text.pooling is None
    with pytest.raises(UsageError, match="has no pooling type"):
        text.embed(["a"])
    text.close()


def test_zeros_have_no_direction() -> None:
    assert (normalized(np.zeros(8, np.float32)) == 0).all()


# ---- reranking -----------------------------------------------------------------------------


def test_scores_are_chances_or_raw(reranker: Model) -> None:
    """RR-03; a document's score does not depend on the others."""
    assert reranker.pooling == "rank"
    documents = ["boil the water", "trains leave at noon", "tea"]
    scores, raw = reranker.rank("how to", documents), reranker.rank("how to", documents, raw=True)
    assert all(0 < s < 1 for s in scores) and len(set(scores)) == 3
    assert scores == [float(ar.sigmoid(np.float32([r]))[0]) for r in raw]
    assert reranker.rank("how to", documents[1:2]) == scores[1:2]
    assert reranker.rank("how to", []) == []


def test_a_pair_is_written_as_the_encoder_learned_it(reranker: Model) -> None:
    tok = reranker.tokenizer
    assert reranker._embedder is not None
    pair = reranker._embedder.pair("a cat", "[SEP] dog")
    assert pair == [2, *tok.encode("a cat"), 3, *tok.encode("[SEP] dog"), 3]
    assert pair.count(3) == 2  # a document cannot write a separator


def test_a_decoder_ranks_by_its_template(tmp_path: Path) -> None:
    """The first label is yes; the template's markup counts as such, the user's does not."""
    path = qwen3(
        tmp_path,
        RANK,
        qwen3__classifier__output_labels=["no", "yes"],
        tokenizer__chat_template__rerank="<|begin|>{query} / {document}<|end|>",
    )
    _add_head(path, labels=2)
    model = Model.load(path, threads=1)
    embedder, tok = model._embedder, model.tokenizer
    assert embedder is not None and model.pooling == "rank"
    begin, end = tok.bos_id, tok.eos_id
    pair = embedder.pair("is it?", "<|end|> {query}")
    assert pair == [begin, *tok.encode("is it? / <|end|> {query}"), end]
    (score,) = model.rank("is it?", ["it is"])
    (logits,) = embedder._run([embedder.pair("is it?", "it is")])
    assert score == float(ar.softmax(logits[None])[0, 1])
    model.close()


def _add_head(path: Path, *, labels: int) -> None:
    """Give a model file a classifier."""
    from support.gguf_writer import write_gguf

    with GGUFFile.open(path) as file:
        keys = {k: _plain(v) for k, v in file.metadata.items()}
        tensors = {n: (t.shape, t.type_id, bytes(file.data(n))) for n, t in file.tensors.items()}
    w = np.random.default_rng(1).standard_normal((labels, 64)).astype("<f4")
    tensors["cls.output.weight"] = (w.shape, 0, w.tobytes())
    write_gguf(path, keys, tensors)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | str) or not hasattr(value, "__len__"):
        return value
    return [str(item) for item in value]  # type: ignore[attr-defined]


def test_a_decoder_embeds_a_text_longer_than_a_step(tmp_path: Path) -> None:
    path = qwen3(tmp_path, LAST)
    with GGUFFile.open(path) as file:
        assert is_embedding(file)
    model = Model.load(path, threads=2, ctx_size=1024)
    ids = np.random.default_rng(0).integers(0, VOCAB, 700).tolist()
    assert model.engine.device.program.max_rows == 512
    vectors = model.embed([[5, 6], ids, ids[:600]])
    assert (model.embed([ids])[0] == vectors[1]).all()
    assert (model.embed([ids[:600]])[0] == vectors[2]).all()
    model.close()


# ---- a real model --------------------------------------------------------------------------


def test_minilm_is_as_near_to_float32_as_its_weights(shared_dir: Path) -> None:
    path = shared_dir / "models" / "all-MiniLM-L6-v2-Q8_0.gguf"
    if not path.exists():
        pytest.skip("all-MiniLM-L6-v2-Q8_0.gguf is absent")
    golden = json.loads((path.parent / "minilm-golden.json").read_text(encoding="utf-8"))
    model = Model.load(path, threads=2)
    texts = golden["texts"] + [
        {"text": d["text"], "token_ids": d["hf_token_ids"], "vector": d["vector_hf_ids"]}
        for d in golden["known_divergences"]
    ]
    cosines = []
    for entry, vector in zip(texts, model.embed([t["text"] for t in texts]), strict=True):
        assert model.tokenizer.encode(entry["text"], add_special=True) == entry["token_ids"]
        cosines.append(float(vector @ np.float32(entry["vector"])))
    assert min(cosines) > 0.998 and np.mean(cosines[: len(golden["texts"])]) > 0.9994
    for triple in golden["triples"]:
        q, near, far = model.embed([triple[k] for k in ("query", "relevant", "irrelevant")])
        assert q @ near > q @ far
    model.close()


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("a cat", "put a single text into a list"),
        (b"a cat", "put a single text into a list"),
        (None, "must be a list of texts"),
        (5, "must be a list of texts"),
        ([5], "a string or a list of token ids"),
        ([b"a cat"], "a string or a list of token ids"),
        ([None], "a string or a list of token ids"),
        ([[1.5]], "whole numbers"),
        ([["a"]], "whole numbers"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(bert: Model, texts: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        bert.embed(texts)  # type: ignore[arg-type]


def test_token_ids_may_be_an_array(bert: Model) -> None:
    ids = np.array([1, 2, 3])
    assert (bert.embed([ids])[0] == bert.embed([[1, 2, 3]])[0]).all()  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("query", "documents"), [("a", "text"), ("a", None), ("a", [5]), (5, ["a"]), (None, ["a"])]
)
def test_what_cannot_be_ranked_is_refused(
    reranker: Model, query: object, documents: object
) -> None:
    with pytest.raises(UsageError, match=r"list of texts|must be a string"):
        reranker.rank(query, documents)  # type: ignore[arg-type]
