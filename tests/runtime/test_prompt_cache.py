"""Prompt states: a warm answer is the cold one, whoever left what and wherever it was kept."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.answers import Heard, plain, random_tokens, request, tiny_engine

from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.engine import Engine
from kinetic.runtime.prompt_cache import PromptCache
from kinetic.runtime.prompt_store import PromptStore, chain_key
from kinetic.runtime.sampling import SamplingParams
from kinetic.runtime.scheduler import Scheduler

CTX, PAGES = 8 * PAGE, 40
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with tiny_engine(tmp_path_factory.mktemp("m"), n_ctx=CTX, n_pages=PAGES) as engine:
        yield engine


@pytest.fixture(autouse=True)
def all_pages_come_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        assert request.getfixturevalue("engine").pages.available == PAGES


def warm(
    engine: Engine, folder: Path | None = None, parallel: int = 1, **options: int
) -> Scheduler:
    """A scheduler that keeps prompt states."""
    store = None if folder is None else PromptStore(folder)
    return Scheduler(
        engine, parallel, cache=PromptCache(engine, store=store, identity="m", **options)
    )


def ask(scheduler: Scheduler, prompt: list[int], **options: object) -> Heard:
    heard = Heard()
    scheduler.submit(request(prompt, SEEDED, **options), heard)
    assert heard.end.reason == "length", heard.end
    return heard


@pytest.mark.parametrize(
    ("first", "shared", "second", "cached"),
    [
        (300, 300, 300, 299),  # the same again: all but the last token
        (300, 300, 340, 300),
        (300, 250, 320, 250),  # parts in the middle of a page
        (256, 256, 300, 256),
        (300, 64, 200, 64),
        (300, 63, 200, 63),
        (300, 0, 200, 0),
        (10, 10, 12, 10),
        (300, 200, 100, 99),
        (1, 1, 1, 0),
    ],
)
def test_a_prompt_goes_on_from_the_longest_beginning_that_is_known(
    engine: Engine, first: int, shared: int, second: int, cached: int
) -> None:
    scheduler = warm(engine)
    prompt = random_tokens(first, 1)
    other = (prompt[:shared] + [t ^ 1 for t in random_tokens(second, 1)[shared:]])[:second]
    assert ask(scheduler, prompt).ids == plain(engine, prompt, SEEDED)
    heard = ask(scheduler, other)
    assert heard.end.counts.cached_tokens == cached
    assert heard.ids == plain(engine, other, SEEDED)
    scheduler.close()


def test_a_conversation_goes_on_behind_its_own_answer(engine: Engine) -> None:
    scheduler, prompt, known = warm(engine), random_tokens(90), 0
    for turn in range(4):
        heard = ask(scheduler, prompt, max_tokens=20)
        assert heard.ids == plain(engine, prompt, SEEDED, max_tokens=20)
        assert heard.end.counts.cached_tokens >= known
        prompt = [*prompt, *heard.ids, *random_tokens(30, turn)]
        known = len(prompt) - 30 - 1
    scheduler.close()


def test_equal_prompts_at_once(engine: Engine) -> None:
    scheduler, prompt = warm(engine, parallel=3), random_tokens(150)
    expected = plain(engine, prompt, SEEDED)
    heard = [Heard() for _ in range(9)]
    for one in heard:
        scheduler.submit(request(prompt, SEEDED), one)
    assert all(one.end.reason == "length" and one.ids == expected for one in heard)
    assert heard[-1].end.counts.cached_tokens >= 2 * PAGE
    scheduler.close()


def test_salts_share_nothing(engine: Engine) -> None:
    scheduler, prompt = warm(engine), random_tokens(200)
    for salt, cached in (("", 0), ("a", 0), ("b", 0), ("a", 199), ("", 199)):
        assert ask(scheduler, prompt, salt=salt).end.counts.cached_tokens == cached
    scheduler.close()


def test_what_is_kept_gives_way_to_requests_and_to_its_limit(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with tiny_engine(tmp_path_factory.mktemp("few"), n_ctx=CTX, n_pages=10) as engine:
        cache = PromptCache(engine)
        scheduler = Scheduler(engine, 1, cache=cache)
        for seed in range(6):
            prompt = random_tokens(400, seed)
            assert ask(scheduler, prompt).ids == plain(engine, prompt, SEEDED)
            assert len(cache) + engine.pages.available == 10
        scheduler.close()
        small = PromptCache(engine, limit=3 * cache._page_bytes)
        scheduler = Scheduler(engine, 1, cache=small)
        for seed in range(3):
            ask(scheduler, random_tokens(400, seed))
            assert len(small) == 3 and small.nbytes <= small.limit
        scheduler.close()
        assert engine.pages.available == 10


def test_what_was_used_lately_stays(engine: Engine) -> None:
    cache = PromptCache(engine)
    cache.limit = 7 * cache._page_bytes
    scheduler = Scheduler(engine, 1, cache=cache)
    first = random_tokens(190, 0)
    ask(scheduler, first)
    for seed in range(1, 5):
        ask(scheduler, random_tokens(190, seed))
        assert ask(scheduler, first).end.counts.cached_tokens == 189
    scheduler.close()


def test_random_traffic_is_answered_as_without(engine: Engine) -> None:
    """Texts that part everywhere, tight memory, cancels: answers never change."""
    rng = random.Random(5)
    texts = [random_tokens(400, i) for i in range(3)]
    cache = PromptCache(engine)
    cache.limit = 12 * cache._page_bytes
    scheduler = Scheduler(engine, 3, cache=cache)
    asked = []
    for i in range(80):
        text = rng.choice(texts)
        prompt = text[: rng.randrange(1, 400)] + random_tokens(rng.randrange(3) * 20, i)
        heard = Heard()
        ticket = scheduler.submit(request(prompt, SEEDED, max_tokens=8), heard)
        if rng.random() < 0.2:
            ticket.cancel()
        asked.append((prompt, heard))
    scheduler.close()
    expected = [plain(engine, prompt, SEEDED, max_tokens=8) for prompt, _ in asked]
    for i, (_, heard) in enumerate(asked):
        assert heard.end.reason in ("length", "cancelled")
        assert heard.end.reason == "cancelled" or heard.ids == expected[i]


# -- on disk ---------------------------------------------------------------------------------
def test_states_survive_a_restart(engine: Engine, tmp_path: Path) -> None:
    prompt = random_tokens(300)
    expected = plain(engine, prompt, SEEDED)
    for cached in (0, 4 * PAGE, 4 * PAGE):
        scheduler = warm(engine, tmp_path)
        heard = ask(scheduler, prompt)
        assert heard.ids == expected and heard.end.counts.cached_tokens == cached
        again = ask(scheduler, prompt)
        assert again.ids == expected and again.end.counts.cached_tokens == 299
        scheduler.close()
    assert len(list(tmp_path.glob("*.warm"))) == 316 // PAGE
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*.warm"))
    other = Scheduler(engine, cache=PromptCache(engine, store=PromptStore(tmp_path), identity="n"))
    assert ask(other, prompt).end.counts.cached_tokens == 0
    assert ask(other, prompt, salt="s").end.counts.cached_tokens == 0
    other.close()


@pytest.mark.parametrize("harm", ["cut", "empty", "bit", "longer", "swapped", "head", "folder"])
def test_a_file_that_is_not_right_is_a_miss(engine: Engine, tmp_path: Path, harm: str) -> None:
    prompt = random_tokens(300)
    scheduler = warm(engine, tmp_path)
    expected = ask(scheduler, prompt).ids
    scheduler.close()
    cache = PromptCache(engine, store=PromptStore(tmp_path), identity="m")
    key = cache._root("").key
    paths = []
    for i in range(4):
        part = np.array(prompt[i * PAGE : (i + 1) * PAGE], "<i4").tobytes()
        key = chain_key(key, part)
        paths.append(tmp_path / f"{key.hex()}.warm")
    cache.close()
    path, raw = paths[1], bytearray(paths[1].read_bytes())
    if harm == "folder":
        path.unlink()
        path.mkdir()
    elif harm == "swapped":
        path.write_bytes(paths[2].read_bytes())
    else:
        raw[{"head": 12}.get(harm, -9)] ^= 16
        changed = {"cut": raw[:-5], "empty": b"", "longer": raw + b"x"}.get(harm, raw)
        path.write_bytes(bytes(changed))
    scheduler = warm(engine, tmp_path)
    heard = ask(scheduler, prompt)
    assert heard.ids == expected and heard.end.counts.cached_tokens == PAGE
    scheduler.close()
    if harm != "folder":  # and it was written again
        scheduler = warm(engine, tmp_path)
        assert ask(scheduler, prompt).end.counts.cached_tokens == 4 * PAGE
        scheduler.close()


def test_the_folder_is_bounded_and_old_files_go_first(tmp_path: Path) -> None:
    page, state = np.zeros(900, np.uint8), np.zeros(0, np.uint8)
    litter = tmp_path / ".x.part"
    litter.write_bytes(b"left by a killed process")
    store = PromptStore(tmp_path, limit=10_000)
    keys = [chain_key(b"", bytes([i])) for i in range(30)]
    for key in keys:
        store.save(key, page, state)
        store.touch([keys[0]])
    store.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) <= 10_000 and len(sizes) >= 8 and not litter.exists()
    store = PromptStore(tmp_path, limit=10_000)
    assert store.load(keys[0], 900, 0) is not None and store.load(keys[29], 900, 0) is not None
    assert store.load(keys[2], 900, 0) is None and store.load(keys[29], 899, 0) is None
    store.close()


def test_a_folder_that_cannot_be_written_costs_nothing(engine: Engine, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    scheduler, prompt = warm(engine, blocked), random_tokens(200)
    assert ask(scheduler, prompt).ids == plain(engine, prompt, SEEDED)
    scheduler.close()


_WRITER = textwrap.dedent("""
    import sys, pathlib, numpy as np
    from kinetic.runtime.prompt_store import PromptStore, chain_key
    store = PromptStore(pathlib.Path(sys.argv[1]), limit=8 << 20)
    print("ready", flush=True)
    i = 0
    while True:
        key = chain_key(b"k", str(i % 300).encode())
        page = np.full(200_000, i % 300 % 251, np.uint8)
        if store.has_room():
            store.save(key, page, np.zeros(0, np.uint8))
            i += 1
""")


@pytest.mark.parametrize(
    "kills", [3, pytest.param(50, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_killed_while_writing(tmp_path: Path, kills: int) -> None:
    """Whatever a killed process leaves, each file is right or a miss, and the litter goes."""
    rng = random.Random(kills)
    for _ in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(0.02 + rng.random() * 0.1)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        store = PromptStore(tmp_path, limit=8 << 20)
        found = 0
        for i in range(300):
            got = store.load(chain_key(b"k", str(i).encode()), 200_000, 0)
            if got is not None:
                found += 1
                assert (got[0] == i % 251).all()
        store.close()
    assert found
    store = PromptStore(tmp_path, limit=8 << 20)
    store.save(chain_key(b"last"), np.zeros(10, np.uint8), np.zeros(0, np.uint8))
    store.close()
    assert not list(tmp_path.glob(".*.part"))
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 9 << 20


def test_states_of_a_tight_cache_and_a_disk(engine: Engine, tmp_path: Path) -> None:
    """What memory forgot comes back from the disk."""
    cache = PromptCache(engine, store=PromptStore(tmp_path), identity="m")
    cache.limit = 6 * cache._page_bytes
    scheduler = Scheduler(engine, 1, cache=cache)
    prompts = [random_tokens(300, seed) for seed in range(4)]
    expected = [ask(scheduler, prompt).ids for prompt in prompts]
    deadline = time.monotonic() + 20
    while len(list(tmp_path.glob("*.warm"))) < 16 and time.monotonic() < deadline:
        time.sleep(0.01)
    for prompt, answer in zip(prompts, expected, strict=True):
        heard = ask(scheduler, prompt)
        assert heard.ids == answer == plain(engine, prompt, SEEDED)
        assert heard.end.counts.cached_tokens >= 4 * PAGE
    scheduler.close()
