"""Requests to a scheduler, and the plain decoding that every answer is compared with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from support.tiny_models import tiny_model

from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine
from kinetic.runtime.request import Finish, Request, Token
from kinetic.runtime.sampling import Sampler, SamplingParams

VOCAB = 288
GREEDY = SamplingParams(temperature=0, seed=0)


def random_tokens(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """A prompt of noise."""
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


@contextmanager
def tiny_engine(
    folder: Path,
    *,
    arch: str = "llama",
    n_ctx: int = 512,
    n_pages: int = 32,
    max_rows: int = 128,
    max_outputs: int = 32,
    threads: int = 2,
    n_slots: int = 8,
    **dims: object,
) -> Iterator[Engine]:
    """An engine on a tiny model."""
    path = folder / f"{arch}.gguf"
    sizes = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": VOCAB} | dims
    tiny_model(arch, path, formats="Q8_0", **sizes)
    with GGUFFile.open(path) as file:
        program = compile_graph(
            build(file), cpu_target(), max_rows=max_rows, max_outputs=max_outputs
        )
        cpu = CpuDevice(
            program, file, threads=threads, n_ctx=n_ctx, n_pages=n_pages, n_slots=n_slots
        )
        yield Engine(cpu, n_ctx, n_pages)
        cpu.close()


class Heard:
    """A listener that remembers; it stops at `stop_at` tokens."""

    def __init__(self, stop_at: int | None = None):
        self.tokens: list[Token] = []
        self.prompts: list[tuple[int, int]] = []
        self.ended: Finish | None = None
        self.over = threading.Event()
        self._stop_at = stop_at

    def prompt(self, done: int, total: int) -> None:
        self.prompts.append((done, total))

    def token(self, token: Token) -> bool:
        self.tokens.append(token)
        return len(self.tokens) == self._stop_at

    def finish(self, finish: Finish) -> None:
        assert self.ended is None
        self.ended = finish
        self.over.set()

    @property
    def ids(self) -> list[int]:
        """The answer."""
        return [token.id for token in self.tokens]

    @property
    def end(self) -> Finish:
        """How it ended; waits for that."""
        assert self.over.wait(60), "no end within a minute"
        assert self.ended is not None
        return self.ended


def request(
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    max_tokens: int | None = 16,
    end_ids: frozenset[int] = frozenset(),
    vocab: int = VOCAB,
    **options: object,
) -> Request:
    """A request with a fresh sampler."""
    sampler = Sampler(params, vocab)
    return Request(prompt, sampler, end_ids, max_tokens, **options)  # type: ignore[arg-type]


def plain(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    max_tokens: int = 16,
    end_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """The answer by decoding one token a step, alone."""
    sampler = Sampler(params, engine.device.output("logits", 0).shape[1])
    sampler.accept_all(prompt)
    sequence, answer = engine.new_sequence(), list[int]()
    try:
        logits = engine.prefill(sequence, list(prompt))
        for place in range(max_tokens):
            answer.append(sampler.sample(logits, place))
            sampler.accept(answer[-1])
            if answer[-1] in end_ids or place + 1 == max_tokens or len(sequence) >= engine.n_ctx:
                break
            logits = engine.decode(sequence, answer[-1])
    finally:
        sequence.close()
    return answer
