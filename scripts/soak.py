"""Random concurrent requests for minutes, with cancels; every answer is compared.

    python scripts/soak.py [--minutes 10] [--arch llama] [--seed 0]

On a tiny model that is made here: several users ask beginnings of a few texts, with and without
salts, at random temperatures; some cancel, some have deadlines. Each answer must be the one that
decoding alone gives, or its beginning where it was cut short. At the end no page or state may be
held, and memory must have stayed flat. Prints one line a minute; exits with 1 at the first
difference.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.answers import Heard, plain, random_tokens, request, tiny_engine

from kinetic.runtime.engine import Engine
from kinetic.runtime.memory import page_bytes
from kinetic.runtime.prompt_cache import PromptCache
from kinetic.runtime.prompt_store import PromptStore
from kinetic.runtime.sampling import SamplingParams
from kinetic.runtime.scheduler import Scheduler

CTX, PAGES, SLOTS, USERS = 512, 96, 24, 6
GROWTH = 64 << 20
"""Bytes that the process may grow by after its first minute."""
DISK, MEMORY = 4 << 20, 2 << 20
"""Bytes of prompt states on disk, and in memory beside 40 pages: both too few for all."""
WIDE = {"n_embd": 256, "n_ff": 256, "head_dim": 64}


class Soak:
    """Users that ask until the time is over, and what they found."""

    def __init__(self, engine: Engine, folder: Path, seed: int):
        self.engine, self.seed = engine, seed
        store = PromptStore(folder, DISK)
        cache = PromptCache(engine, store=store, identity="soak")
        cache.limit = 40 * page_bytes(engine.device.program) + MEMORY
        self.cache = cache
        self.scheduler = Scheduler(engine, 4, cache=cache)
        rng = random.Random(seed)
        self.texts = [random_tokens(440, seed * 100 + i) for i in range(4)]
        self.cases = [self._case(rng) for _ in range(60)]
        # All plain answers first: afterwards the engine belongs to the scheduler.
        self.expected = self.scheduler.call(
            lambda: [plain(engine, p, s, max_tokens=n) for p, s, n in self.cases]
        )
        self.wrong: list[str] = []
        self.asked = self.cut = 0
        self._lock = threading.Lock()

    def _case(self, rng: random.Random) -> tuple[list[int], SamplingParams, int]:
        text = rng.choice(self.texts)
        prompt = text[: rng.randrange(1, 440)] + random_tokens(rng.choice((0, 0, 15)), 7)
        params = SamplingParams(
            temperature=rng.choice((0.0, 0.8, 1.3)),
            top_k=rng.choice((0, 20)),
            repeat_penalty=rng.choice((1.0, 1.2)),
            mirostat=rng.choice((0, 0, 2)),
            dry_multiplier=rng.choice((0.0, 0.8)),
            seed=rng.randrange(1 << 30),
        )
        return prompt, params, rng.randrange(1, 50)

    def user(self, number: int, until: float) -> None:
        """One user's questions, one after the other."""
        rng = random.Random(self.seed * 1000 + number)
        while time.monotonic() < until and not self.wrong:
            i = rng.randrange(len(self.cases))
            prompt, params, count = self.cases[i]
            deadline = time.monotonic() + rng.random() / 20 if rng.random() < 0.1 else None
            salt, heard = rng.choice(("", "", "a", "b")), Heard()
            asked = request(prompt, params, max_tokens=count, salt=salt, deadline=deadline)
            ticket = self.scheduler.submit(asked, heard)
            if rng.random() < 0.2:
                time.sleep(rng.random() / 50)
                ticket.cancel()
            reason, whole = heard.end.reason, self.expected[i]
            cut = reason in ("cancelled", "deadline")
            with self._lock:
                self.asked += 1
                self.cut += cut
                if heard.ids != (whole[: len(heard.ids)] if cut else whole):
                    self.wrong.append(f"case {i}, salt {salt!r}: {heard.ids}, not {whole}")
                elif not cut and reason != "length":
                    self.wrong.append(f"case {i} ended with {reason}: {heard.end.error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--arch", default="llama")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    process = psutil.Process()
    with (
        tempfile.TemporaryDirectory() as folder,
        tiny_engine(
            Path(folder), arch=options.arch, n_ctx=CTX, n_pages=PAGES, n_slots=SLOTS, **WIDE
        ) as engine,
    ):
        soak = Soak(engine, Path(folder) / "warm", options.seed)
        began = time.monotonic()
        until = began + 60 * options.minutes
        users = [threading.Thread(target=soak.user, args=(i, until)) for i in range(USERS)]
        for user in users:
            user.start()
        settled, wait = None, min(60.0, 15 * options.minutes)
        while any(user.is_alive() for user in users):
            time.sleep(min(wait, max(0.1, until - time.monotonic())))
            used = process.memory_info().rss
            settled = settled or used
            print(
                f"{time.monotonic() - began:5.0f} s: {soak.asked} requests, {soak.cut} cut short, "
                f"{len(soak.wrong)} wrong, {used / 2**20:.0f} MiB",
                flush=True,
            )
            for user in users:
                user.join(timeout=0.5)
        soak.scheduler.close()
        if settled is not None and process.memory_info().rss > settled + GROWTH:
            soak.wrong.append(f"memory grew from {settled >> 20} MiB")
        if engine.pages.available != PAGES:
            soak.wrong.append(f"{PAGES - engine.pages.available} pages are still held")
        if engine.states is not None and engine.states.available != SLOTS:
            soak.wrong.append(f"{SLOTS - engine.states.available} states are still held")
        files = list((Path(folder) / "warm").glob("*"))
        if sum(file.stat().st_size for file in files) > DISK:
            soak.wrong.append("the folder of prompt states outgrew its limit")
    print(soak.wrong[0] if soak.wrong else f"{soak.asked} requests, no difference, nothing leaked")
    return bool(soak.wrong)


if __name__ == "__main__":
    sys.exit(main())
