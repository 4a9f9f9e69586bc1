"""The Python API: load a model, generate from it. The command line is built on this.

    model = Model.load("model.gguf")
    for piece in model.generate(model.encode_prompt("Hello"), SamplingParams(temperature=0)):
        print(piece.text, end="")

This is where the storeys meet: file -> family -> graph -> codegen -> device -> engine.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, cast

from kinetic import families, settings
from kinetic.codegen.gpu_pipeline import MAX_ROWS as GPU_ROWS
from kinetic.codegen.gpu_pipeline import compile_for_vulkan
from kinetic.codegen.objects import source_digest
from kinetic.codegen.pipeline import (
    MAX_ROWS,
    compile_graph,
)
from kinetic.codegen.targets.llvm_x86 import CpuTarget, cpu_target
from kinetic.embeddings import Embedder, Text, Vector, limits, pages_for
from kinetic.errors import ContextError, UnsupportedError, UsageError
from kinetic.generation import (
    Event,
    FinishEvent,
    Generation,
    GenerationRequest,
    TextEvent,
)
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.gguf_split import open_model
from kinetic.ir.gpu_program import GpuProgram
from kinetic.ir.graph import Graph
from kinetic.ir.program import Program
from kinetic.lora import merge
from kinetic.runtime.cpus import default_threads, usable_cpus
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.devices.vulkan import VulkanDevice
from kinetic.runtime.devices.weights import LoadOptions, Progress
from kinetic.runtime.drafting import PredictionBlock
from kinetic.runtime.drafting.block import BATCH
from kinetic.runtime.engine import Engine
from kinetic.runtime.memory import (
    Memory,
    context_that_fits,
    free_memory,
    memory_of,
    page_bytes,
    parallel_that_fits,
    usable_memory,
)
from kinetic.runtime.prompt_cache import ARITHMETIC, MEMORY_LIMIT, PromptCache
from kinetic.runtime.prompt_store import PromptStore
from kinetic.runtime.repack_cache import DEFAULT_LIMIT, CacheEntry, entry_key
from kinetic.runtime.request import Request
from kinetic.runtime.sampling import DRY_BREAKERS, Sampler, SamplingParams
from kinetic.runtime.scheduler import Scheduler
from kinetic.showing import debug, debug_compiled, notice, show, show_names
from kinetic.technologies import TECHNOLOGIES
from kinetic.text.breakers import token_sequences
from kinetic.text.chat_template import ChatTemplate
from kinetic.text.tokenizer import Tokenizer
from kinetic.text.vocab import Metadata

__all__ = ["Model", "Piece", "SamplingParams", "Stats", "show", "show_names"]

DEFAULT_CTX = 32768
"""Context without `-c`, unless the model was trained on less."""
CPU_NAME = "the CPU"
_PROMPT_SETS = {"self", "messages", "tools", "add_generation_prompt"}
"""Variables of a chat template that are not the caller's to set."""
MAX_PARALLEL = 64
"""Requests at once: each may want an output of a step."""
_MOST_SPARE = 1 << 16
"""Pages for prompt states, where the model is tiny."""
_GPU_PROMPT_BYTES = 256 << 20
"""Memory of a GPU for the states of prompts."""
_GUESS_BYTES = 256 << 20
"""Memory for the states of guesses."""
KV_TYPES = ("f16", "f32")
"""What the cache may hold."""


@dataclass(frozen=True)
class Piece:
    """A generated token and the text it completes (empty inside a character)."""

    text: str
    token_id: int


@dataclass
class Stats:
    """What an answer cost. *Units*: seconds."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    generate_seconds: float = 0.0
    stop_reason: str = "length"
    """`end` (the model ended), `stop` (a stop text), `length` or `context`."""

    def take(self, finish: FinishEvent) -> None:
        """Fill in what the end of an answer tells."""
        counts, self.stop_reason = finish.counts, finish.reason
        self.prompt_seconds, self.generate_seconds = counts.prompt_seconds, counts.generate_seconds
        self.generated_tokens = counts.generated_tokens


class Model:
    """A loaded model: tokenizer, chat template and an engine on a device."""

    def __init__(
        self,
        file: GGUFFile,
        graph: Graph,
        engine: Engine,
        threads: int,
        scheduler: Scheduler | None = None,
    ):
        self.file, self.graph, self.engine = file, graph, engine
        self.threads, self.n_ctx = threads, engine.n_ctx
        self.scheduler = scheduler or Scheduler(engine)
        self.device_name = CPU_NAME
        self.device_class = engine.device.program.device_class
        metadata = cast(Metadata, file)  # its getters are generic in the default's type
        self.tokenizer = Tokenizer.from_gguf(metadata)
        self.chat_template = ChatTemplate.from_gguf(metadata, self.tokenizer)
        self._breakers: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        self._embedder = None
        if graph.meta.pooling is not None:
            self._embedder = Embedder(graph, engine, self.tokenizer, metadata, self.scheduler.call)
        self.adapters: tuple[tuple[str, float], ...] = ()
        """LoRA files merged into the weights, and their scales."""
        self.load_seconds = 0.0
        self.last_stats: Stats | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        ctx_size: int | None = None,
        kv_type: str = "f16",
        device: str = "auto",
        device_class: str | None = None,
        parallel: int | None = 1,
        queue_limit: int | None = None,
        off: Collection[str] = (),
        cache_dir: str | os.PathLike[str] | None = None,
        repack: bool = True,
        mmap: bool = True,
        mlock: bool = False,
        repack_cache: str | os.PathLike[str] | None = None,
        repack_cache_limit: int = DEFAULT_LIMIT,
        lora: Items[tuple[str | os.PathLike[str], float]] = (),
        progress: Progress | None = None,
    ) -> Model:
        """Load a GGUF file.

        `ctx_size` 0 takes all the model supports, None the default. `device_class` forces
        a class (`cpu-x86_64-scalar`); by default this machine's best. `parallel` requests run
        at once, each with the whole context, and share each pass over the weights (None: as
        many as half the free memory has room for, up to four); up to `queue_limit` more wait
        (None: any number). `off` names speed technologies not to use,
        of `TECHNOLOGIES`; none of them changes an answer. `cache_dir` is a folder that keeps
        the states of prompts for later processes, as readable as the prompts were; without it
        they are kept in memory alone. Without `mmap` the file
        is read instead of mapped; `mlock` keeps the weights from being swapped out.
        `repack_cache` is a folder that keeps repacked weights between loads, of at most
        `repack_cache_limit` bytes. `lora` are adapters and their scales, merged into the
        weights; the states of prompts are not kept then.

        *Raises* `ModelFileError` for a damaged file, `UnsupportedError` for one that needs
        what Kinetic lacks.
        """
        started = time.perf_counter()
        vulkan = re.fullmatch(r"vulkan(\d*)", device)
        if vulkan is None and device not in ("auto", "cpu", "none"):
            raise UnsupportedError(
                f"--device {device} is not supported yet; use --device cpu or --device vulkan"
            )
        if not repack:
            # Products in the file's own order would be a second set of kernels for every
            # format, slower, and save nothing: the file's pages are let go after repacking.
            raise UnsupportedError(
                "--no-repack is not supported: kernels read only the repacked weights, which "
                "take the place of the file's in memory; leave it out"
            )
        if kv_type not in KV_TYPES:
            known = " and ".join(KV_TYPES)
            raise UnsupportedError(f"a {kv_type} cache is not supported; there are {known}")
        if threads is not None and threads < 1:
            raise UsageError(f"{threads} threads cannot run a model; give -t at least 1")
        unknown = set(off) - set(TECHNOLOGIES)
        if unknown:
            raise UsageError(
                f"there is no speed technology {min(unknown)!r} to turn off; there are "
                f"{', '.join(TECHNOLOGIES)}"
            )
        if parallel is not None and not 1 <= parallel <= MAX_PARALLEL:
            raise UsageError(
                f"{parallel} requests cannot run at once; give --parallel 1 to {MAX_PARALLEL}"
            )
        target = cpu_target(device_class)
        usable = len(usable_cpus())
        if threads is None:
            threads = default_threads()
        elif threads > usable:
            # Threads meet after every operation: one that waits for a CPU holds up all.
            notice(f"{threads} threads on {usable} usable CPUs would be slower; using {usable}")
            threads = usable
        debug(1, f"device {target.device_class} ({target.cpu}, {target.dot}), {threads} threads")
        file = open_model(path, in_memory=not mmap)
        if file.manifest is not None and ctx_size is None:
            wanted = file.manifest.profile["ctx-size"]
            ctx_size = None if wanted is None else int(wanted)
        if lora:
            merge(file, lora)
        graph = families.build(file, ctx_size)
        asked, max_rows = limits(graph, _context(graph, ctx_size), MAX_ROWS)
        if ctx_size is not None and asked < ctx_size:
            notice(f"context {asked}, the most that this model takes")
        if vulkan is not None and device_class is not None:
            raise UsageError(f"--device-class {device_class} is not of --device {device}")
        if vulkan is not None:
            program: Program = compile_for_vulkan(
                graph, kv_type=kv_type, max_rows=min(max_rows, GPU_ROWS)
            )
        else:
            program = compile_graph(
                graph,
                target,
                kv_type=kv_type,
                max_rows=max_rows,
                object_cache=settings.cache_dir() / "kernels",
            )
            debug_compiled(graph, target)
        guesses = "rad1" not in off and graph.meta.pooling is None and vulkan is None
        draft = _draft_program(file, target, kv_type) if guesses else None
        n_ctx = context_that_fits(
            program,
            asked,
            explicit=ctx_size is not None,
            usable=usable_memory(),
            parallel=parallel or 1,
            draft=draft,
        )
        if parallel is None:
            parallel = parallel_that_fits(program, n_ctx, free=free_memory(), draft=draft)
        if n_ctx < asked:
            notice(f"context {n_ctx} to fit the memory; -c to change")
        compiled = time.perf_counter()
        n_pages = Engine.pages_for(n_ctx, parallel)
        if graph.meta.pooling is not None:
            n_pages = pages_for(n_ctx, program.max_rows, program.max_outputs)
        options = LoadOptions(progress=progress, mlock=mlock, notice=notice)
        if repack_cache is not None:
            entry = CacheEntry(
                Path(repack_cache), _repack_key(file, program, target), repack_cache_limit
            )
            options = replace(options, cache=entry)
        # Pages that no request needs hold what earlier prompts left behind.
        room = max(0, usable_memory() - memory_of(program, n_pages, draft=draft).total)
        warm = "warm-start" not in off and graph.meta.pooling is None and not lora
        prompt_bytes = min(MEMORY_LIMIT, room // 2) if warm else 0
        spare = min(_MOST_SPARE, prompt_bytes // max(1, page_bytes(program)))
        cpu: CpuDevice | None = None
        gpu: VulkanDevice | None = None
        if isinstance(program, GpuProgram):
            assert vulkan is not None
            # Memory of a GPU is taken when it is asked for, not when it is first touched.
            spare = min(spare, _GPU_PROMPT_BYTES // max(1, page_bytes(program)))
            gpu = VulkanDevice(
                program,
                file,
                n_ctx=n_ctx,
                n_pages=n_pages + spare,
                number=int(vulkan[1]) if vulkan[1] else None,
                cache=settings.cache_dir() / "vulkan",
            )
            engine = Engine(gpu, n_ctx, n_pages + spare)
        else:
            cpu = CpuDevice(
                program,
                file,
                threads=threads,
                n_ctx=n_ctx,
                n_pages=n_pages + spare,
                n_slots=parallel + _guess_slots(program),
                load=options,
            )
            cpu.whole_steps = "torque" not in off
            engine = Engine(cpu, n_ctx, n_pages + spare)
        cache = None
        if warm:
            store = None if cache_dir is None else PromptStore(Path(cache_dir))
            identity = "" if store is None else _prompt_identity(file, program)
            cache = PromptCache(engine, prompt_bytes, store, identity)
        block = None
        if draft is not None:
            pages = Engine.pages_for(n_ctx, parallel)
            beside = CpuDevice(
                draft,
                file,
                threads=threads,
                n_ctx=n_ctx,
                n_pages=pages,
                load=LoadOptions(mlock=mlock, notice=notice),
                beside=cpu,
            )
            block = PredictionBlock(beside, n_ctx, pages)
        scheduler = Scheduler(engine, parallel, queue_limit, off=off, cache=cache, block=block)
        model = cls(file, graph, engine, threads, scheduler)
        if gpu is not None:
            model.device_name = gpu.name
        model.adapters = tuple((os.fspath(adapter), scale) for adapter, scale in lora)
        model.load_seconds = time.perf_counter() - started
        debug(2, f"compiled {compiled - started:.3f} s, loaded {model.load_seconds:.3f} s in all")
        return model

    # -- prompts ---------------------------------------------------------------------
    def encode_prompt(
        self,
        text: str,
        *,
        system: str | None = None,
        raw: bool = False,
        template_kwargs: dict[str, object] | None = None,
    ) -> list[int]:
        """Token ids of one user message in the model's chat template.

        `raw` takes the text as the whole prompt, control tokens in it included. A model
        without a template continues the text, in which control tokens are then only text.

        *Raises* `UsageError` where `template_kwargs` names what the prompt itself sets.
        """
        if raw:
            return self.tokenizer.encode_prompt(text)
        if self.chat_template is None:
            return self.tokenizer.encode_prompt(text, [(0, len(text))])
        taken = _PROMPT_SETS & (template_kwargs or {}).keys()
        if taken:
            raise UsageError(
                f"the chat template's variable {min(taken)!r} is set by the prompt itself; "
                "leave it out of the template's variables"
            )
        messages: list[dict[str, object]] = []
        if system is not None:
            messages.append({"role": "system", "content": system})
        messages.append({"role": "user", "content": text})
        kwargs: dict[str, Any] = dict(template_kwargs or {})
        rendered = self.chat_template.render(messages, **kwargs)
        return self.chat_template.encode(rendered)

    # -- generation ------------------------------------------------------------------
    def generate(
        self,
        prompt_ids: Items[int],
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: Items[str] = (),
    ) -> Iterator[Piece]:
        """Yield the answer token by token; `last_stats` is filled when it ends.

        `max_tokens` None is no limit but the context.

        *Raises* `ContextError` when the prompt does not fit the context, `UsageError` when it
        is empty or holds what is no token of the model, and for limits that are no whole number.
        """
        prompt = _token_ids(prompt_ids)
        if not prompt:
            raise UsageError("the prompt has no tokens; give some text")
        n_vocab = self.graph.meta.n_vocab
        if not 0 <= min(prompt) <= max(prompt) < n_vocab:
            bad = next(t for t in prompt if not 0 <= t < n_vocab)
            raise UsageError(f"{bad} is no token of this model; its tokens are 0 to {n_vocab - 1}")
        if len(prompt) > self.n_ctx:
            raise ContextError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.n_ctx}; "
                "shorten it or raise -c"
            )
        request = GenerationRequest(prompt, params or SamplingParams(), max_tokens, tuple(stop))
        stats = self.last_stats = Stats(prompt_tokens=len(prompt))
        last = 0
        for event in self.start(request).events():
            if isinstance(event, TextEvent):
                last = last if event.token is None else event.token.id
                if event.token is None or event.token.id not in self.tokenizer.end_ids:
                    yield Piece(event.text, last)
            elif isinstance(event, FinishEvent):
                stats.take(event)
                if event.error is not None:
                    raise event.error

    def start(
        self, request: GenerationRequest, on_event: Callable[[Event], None] | None = None
    ) -> Generation:
        """Begin an answer; it runs on the engine's thread beside others.

        With `on_event`, events go there, on the engine's thread, instead of `events()`.

        *Raises* `ContextError` where the prompt cannot fit, `UsageError` for settings that
        name tokens the model lacks.
        """
        self._must_generate()
        _check_limit(request.max_tokens)
        params = self._resolved(request.params)
        sampler = Sampler(params, self.graph.meta.n_vocab, request.choice)
        ends = frozenset() if request.ignore_eos else frozenset(self.tokenizer.end_ids)
        generation = Generation(
            self.tokenizer, request.stop, ends, sampler.seed, on_event, request.shown
        )
        generation.ticket = self.scheduler.submit(
            Request(
                request.prompt_ids,
                sampler,
                ends,
                request.max_tokens,
                request.logprobs,
                request.constraint,
                request.salt,
                request.deadline,
                request.ahead,
            ),
            generation,
        )
        return generation

    def _resolved(self, params: SamplingParams) -> SamplingParams:
        """The settings with the texts of DRY's breakers as token sequences."""
        if not params.dry:
            return params
        given = params.dry_sequence_breakers
        breakers = DRY_BREAKERS if given is None else given
        texts = tuple(b for b in breakers if isinstance(b, str))
        ids = tuple(b for b in breakers if not isinstance(b, str))
        if texts not in self._breakers:
            self._breakers[texts] = token_sequences(self.tokenizer, texts)
        return params.with_overrides(dry_sequence_breakers=ids + self._breakers[texts])

    def _must_generate(self) -> None:
        if self._embedder is not None:
            raise UsageError(
                "this is an embedding or reranking model, which generates no text; "
                "use Model.embed or Model.rank"
            )

    # -- embeddings ------------------------------------------------------------------
    @property
    def pooling(self) -> str | None:
        """How a text's rows become one: `mean`, `cls`, `last`, or `rank` for scores; None in a
        model that generates text."""
        return self.graph.meta.pooling

    @property
    def is_embedding(self) -> bool:
        """Whether this is an embedding or reranking model."""
        return self._embedder is not None

    def embed(
        self,
        texts: Items[Text],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> list[Vector]:
        """A vector for each text, of length 1 unless `normalize` is off; a text may be token ids.

        `dimensions` keeps so many of each vector's first values, for models trained to be cut.
        With `truncate` a text that is too long is cut instead of refused.

        *Raises* `ContextError` for a text that is too long, `UsageError` for an empty one, one
        with unknown tokens, and models that make no embeddings.
        """
        return self._embeds().embed(
            texts, normalize=normalize, dimensions=dimensions, truncate=truncate
        )

    def rank(
        self, query: str, documents: Items[str], *, raw: bool = False, truncate: bool = False
    ) -> list[float]:
        """How well each document answers the query, from 0 to 1; `raw` gives the model's logits.

        *Raises* as `embed` does.
        """
        return self._embeds().rank(query, documents, raw=raw, truncate=truncate)

    def _embeds(self) -> Embedder:
        if self._embedder is None:
            raise UsageError(
                "this model generates text and has no pooling type in its file; embeddings and "
                "scores need an embedding or reranking model"
            )
        return self._embedder

    @property
    def memory(self) -> Memory:
        """What the model takes, caches when full; what prompts leave behind comes on top."""
        needed = Engine.pages_for(self.n_ctx, self.scheduler.parallel)
        return memory_of(self.engine.device.program, needed, draft=self.scheduler.draft)

    # -- measuring -------------------------------------------------------------------
    def bench_prefill(self, n_tokens: int) -> float:
        """Seconds that a prompt of so many tokens takes."""
        self._must_generate()
        tokens = [(i * 7919) % self.graph.meta.n_vocab for i in range(n_tokens)]

        def measure() -> float:
            sequence = self.engine.new_sequence()
            try:
                started = time.perf_counter()
                self.engine.prefill(sequence, tokens)
                return time.perf_counter() - started
            finally:
                sequence.close()

        return self.scheduler.call(measure)

    def bench_decode(self, n_tokens: int) -> float:
        """Seconds that so many tokens take, one pass over the weights each."""
        self._must_generate()

        def measure() -> float:
            sequence, token = self.engine.new_sequence(), self.tokenizer.bos_id or 0
            try:
                started = time.perf_counter()
                for _ in range(n_tokens):
                    token = int(self.engine.decode(sequence, token).argmax())
                return time.perf_counter() - started
            finally:
                sequence.close()

        return self.scheduler.call(measure)

    def close(self) -> None:
        """Cancel the answers that run or wait, within one step, and give threads and the file
        back; whoever still iterates over an answer gets what was made of it."""
        self.scheduler.close(cancel=True)
        self.engine.device.close()
        self.file.close()


def _token_ids(given: object) -> list[int]:
    """The tokens of a prompt. *Raises* `UsageError` for what is no list of whole numbers."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(
            f"the prompt is {_kind(given)}; give its token ids, as encode_prompt makes them"
        )
    prompt = list(given)
    for token in prompt:
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise UsageError(
                f"the prompt holds what is {_kind(token)}; give token ids, as encode_prompt does"
            )
    return [int(token) for token in prompt]


def _check_limit(max_tokens: object) -> None:
    if max_tokens is None:
        return
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, Integral):
        raise UsageError(
            f"max_tokens is {max_tokens!r:.40}; give a whole number, or None for no limit"
        )
    if max_tokens < 0:
        raise UsageError(f"max_tokens is {max_tokens}; give 0 or more, or None for no limit")


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _context(graph: Graph, asked: int | None) -> int:
    """The context length to run with."""
    trained = graph.meta.n_ctx_train
    if asked is None:
        return min(DEFAULT_CTX, trained) if trained else DEFAULT_CTX
    if asked == 0:
        return trained or DEFAULT_CTX
    if asked < 0:
        raise UsageError(f"a context of {asked} tokens makes no sense; give -c a positive number")
    return asked


def _draft_program(file: GGUFFile, target: CpuTarget, kv_type: str) -> Program | None:
    """The program of the file's own prediction block, None without one."""
    graph = families.build_draft(file)
    if graph is None:
        return None
    return compile_graph(
        graph,
        target,
        kv_type=kv_type,
        max_rows=BATCH,
        max_outputs=1,
        object_cache=settings.cache_dir() / "kernels",
    )


def _repack_key(file: GGUFFile, program: Program, target: CpuTarget) -> str:
    """What a model's repacked weights depend on: the file, the matrices, the layout's code."""
    return entry_key(file.identity(), repr(program.packed), source_digest().hex(), target.key)


def _prompt_identity(file: GGUFFile, program: Program) -> str:
    """All that a cached page's bytes depend on but the tokens: file, graph, arithmetic, layout."""
    parts = (file.identity(), program.ir_hash, ARITHMETIC, program.device_class, program.kv_type)
    return "\n".join((*parts, str(program.slot_bytes), repr(sorted(program.caches.items()))))


def _guess_slots(program: Program) -> int:
    """Slots of recurrent state for guesses; each guess that is run needs one."""
    return max(2, min(16, _GUESS_BYTES // program.slot_bytes)) if program.states else 0
