"""Texts to vectors, and documents to scores: what models with a pooling type are for.

    vectors = model.embed(["a cat", "a dog"])        # one unit vector a text
    scores = model.rank("query", ["a text", ...])    # one number from 0 to 1 a document

A text's vector depends on the text alone, word for word: which others are asked for with it,
and in which batches they run, changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import partial
from numbers import Integral
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError, UsageError
from kinetic.ir.cpu_abi import PAGE
from kinetic.ir.graph import Graph
from kinetic.ir.ops import arithmetic as ar
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.sequence import Sequence
from kinetic.text.tokenizer import Tokenizer
from kinetic.text.vocab import Metadata

Item = TypeVar("Item")
Vector = npt.NDArray[np.float32]
Text = str | Items[int]
"""A text, or its token ids as they are to be run."""

MOST_ROWS = 8192
"""Rows of a step in models that take whole texts; no text may be longer."""
_NO_TEXT = "a text must be a string or a list of token ids, not {}; give texts in a list"
_TEMPLATE_KEY = "tokenizer.chat_template.rerank"
_PLACE = re.compile(r"\{(query|document)\}")


def takes_whole_texts(graph: Graph) -> bool:
    """Whether a text must fit a step, since its rows look ahead or are pooled together."""
    return any(node.op in ("text_attention", "pool") for node in graph)


def limits(graph: Graph, n_ctx: int, max_rows: int) -> tuple[int, int]:
    """The context and the rows of a step for a model with these settings: where it takes whole
    texts, a text must fit both."""
    if not takes_whole_texts(graph):
        return n_ctx, max_rows
    n_ctx = min(n_ctx, graph.meta.n_ctx_train, MOST_ROWS)
    return n_ctx, max(n_ctx, max_rows)


def pages_for(n_ctx: int, max_rows: int, max_outputs: int) -> int:
    """Cache pages for a step full of texts, each of which may leave a page unfilled, or for one
    long text."""
    return max(-(-n_ctx // PAGE), -(-max_rows // PAGE) + max_outputs)


def normalized(x: Vector) -> Vector:
    """`x` at length 1, by the contract's arithmetic; a vector of zeros stays."""
    total = ar.chain_sum(np.square(x)[None], 32)
    return x if total[0] == 0 else x * ar.rsqrt(total)


def _listed(given: Iterable[Item], what: str) -> list[Item]:
    """Some texts. *Raises* `UsageError` for one text, which would be taken for its letters."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(
            f"{what} must be a list of texts, not {type(given).__name__}; "
            "put a single text into a list"
        )
    return list(given)


class Embedder:
    """Runs texts on an engine; safe to call from several threads, which take turns: `call`
    runs a step where nobody else uses the engine (`Scheduler.call`)."""

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        tokenizer: Tokenizer,
        metadata: Metadata,
        call: Callable[[Callable[[], list[Vector]]], list[Vector]],
    ):
        self._engine, self._tokenizer = engine, tokenizer
        self._n_vocab, self._labels = graph.meta.n_vocab, graph.meta.labels
        (self.output,) = graph.outputs
        self._template = metadata.get_str(_TEMPLATE_KEY, "")
        self._call = call

    # ---- embeddings ------------------------------------------------------------------------

    def embed(
        self, texts: Items[Text], *, normalize: bool, dimensions: int | None, truncate: bool
    ) -> list[Vector]:
        """See `Model.embed`."""
        if self.output != "embedding":
            raise UsageError("this is a reranking model, which scores documents; use rank")
        given = _listed(texts, "texts")
        vectors = self._run([self._checked(t, i, truncate) for i, t in enumerate(given)])
        if dimensions is not None:
            width = self._engine.device.program.outputs[self.output].width
            if not 1 <= dimensions <= width:
                raise UsageError(
                    f"{dimensions} dimensions are asked for and the model's vectors have {width}; "
                    f"ask for 1 to {width}"
                )
            vectors = [v[:dimensions] for v in vectors]
        return [normalized(v) for v in vectors] if normalize else vectors

    def tokens(self, text: Text) -> list[int]:
        """The token ids of a text, with those that the vocabulary puts around it."""
        if isinstance(text, str):
            return self._tokenizer.encode(text, add_special=True)
        if isinstance(text, bytes) or not isinstance(text, Iterable):
            raise UsageError(_NO_TEXT.format(type(text).__name__))
        ids = list(text)
        if any(isinstance(i, bool) or not isinstance(i, Integral) for i in ids):
            raise UsageError("a text's token ids must be whole numbers; give those, or a string")
        return [int(token) for token in ids]

    def _checked(self, text: Text, index: int, truncate: bool) -> list[int]:
        """A text's tokens, if it can be run."""
        ids, most = self.tokens(text), self._engine.n_ctx
        if not ids:
            raise UsageError(f"text {index} has no tokens; give some text")
        bad = next((t for t in ids if not 0 <= t < self._n_vocab), None)
        if bad is not None:
            raise UsageError(
                f"text {index} holds {bad}, which is no token of this model; its tokens are 0 to "
                f"{self._n_vocab - 1}"
            )
        if len(ids) <= most:
            return ids
        if not truncate:
            raise ContextError(
                f"text {index} has {len(ids)} tokens and the model takes {most}; shorten it"
            )
        ends = (
            isinstance(text, str) and ids[-1:] == self._tokenizer.encode("", add_special=True)[-1:]
        )
        return [*ids[: most - 1], ids[-1]] if ends else ids[:most]

    # ---- ranking ---------------------------------------------------------------------------

    def rank(self, query: str, documents: Items[str], *, raw: bool, truncate: bool) -> list[float]:
        """See `Model.rank`."""
        if self.output != "scores":
            raise UsageError("this model has no classifier to score documents with; use embed")
        given = _listed(documents, "documents")
        for text in (query, *given):
            if not isinstance(text, str):
                raise UsageError(
                    f"the query and each document must be a string, not {type(text).__name__}"
                )
        pairs = [self.pair(query, document) for document in given]
        scores = self._run([self._checked(p, i, truncate) for i, p in enumerate(pairs)])
        return [self._score(s, raw) for s in scores]

    def pair(self, query: str, document: str) -> list[int]:
        """The tokens of a query and a document: by the file's template, or side by side."""
        tok = self._tokenizer
        if self._template:
            text, spans, values = "", [], {"query": query, "document": document}
            for i, piece in enumerate(_PLACE.split(self._template)):
                value = values[piece] if i % 2 else piece
                if i % 2:
                    spans.append((len(text), len(text) + len(value)))
                text += value
            return tok.encode_prompt(text, spans)
        # As an encoder's texts are written, with a separator in between:
        # [CLS] query [SEP] document [SEP].
        whole = [tok.encode(text, add_special=True) for text in (query, document)]
        plain = [tok.encode(text) for text in (query, document)]
        if len(whole[1]) == len(plain[1]):
            return plain[0] + plain[1]
        starts = tok.bos_id is not None and whole[1][0] == tok.bos_id
        # XLM-RoBERTa's pairs have two separators in between.
        twice = whole[0][-1:] if tok.kind == "t5" and starts else []
        return [*whole[0], *twice, *whole[1][1:]] if starts else whole[0] + whole[1]

    def _score(self, scores: Vector, raw: bool) -> float:
        """One number: the share of `yes` among several labels, or one logit as a chance."""
        if len(scores) == 1:
            return float(scores[0] if raw else ar.sigmoid(scores)[0])
        wanted = self._labels.index("yes") if "yes" in self._labels else 0
        return float((scores if raw else ar.softmax(scores[None])[0])[wanted])

    # ---- running ---------------------------------------------------------------------------

    def _run(self, texts: list[list[int]]) -> list[Vector]:
        """The model's output for each text; as many texts a step as fit."""
        program, found = self._engine.device.program, list[Vector]()
        batch: list[list[int]] = []
        for ids in texts:
            if batch and not self._fits([*batch, ids]):
                found += self._call(partial(self._step, batch))
                batch = []
            if len(ids) > program.max_rows:
                found += self._call(partial(self._long, ids))
            else:
                batch.append(ids)
        return found + (self._call(partial(self._step, batch)) if batch else [])

    def _fits(self, texts: list[list[int]]) -> bool:
        program = self._engine.device.program
        pages = sum(-(-len(ids) // PAGE) for ids in texts)
        return (
            sum(map(len, texts)) <= program.max_rows
            and len(texts) <= program.max_outputs
            and pages <= self._engine.pages.total
        )

    def _step(self, texts: list[list[int]]) -> list[Vector]:
        sequences: list[Sequence] = []
        try:
            work = []
            for ids in texts:
                sequences.append(self._engine.new_sequence())
                work.append(Work(sequences[-1], ids, 1))
            return [row[0].copy() for row in self._engine.step(work, self.output)]
        finally:
            for sequence in sequences:
                sequence.close()

    def _long(self, ids: list[int]) -> list[Vector]:
        """A text that only looks back, in chunks."""
        sequence, size = self._engine.new_sequence(), self._engine.device.program.max_rows
        try:
            for start in range(0, len(ids), size):
                last = start + size >= len(ids)
                work = Work(sequence, ids[start : start + size], int(last))
                (rows,) = self._engine.step([work], self.output)
            return [rows[0].copy()]
        finally:
            sequence.close()
