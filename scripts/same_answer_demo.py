#!/usr/bin/env python3
"""One seeded request, ten times on a busy server: how many distinct answers?

    python3 scripts/same_answer_demo.py --model model.gguf --receipt last.json
    python3 scripts/same_answer_demo.py --model model.gguf --kinetic kinetic \\
        --kinetic-args "--device cpu" --receipt last.json \\
        --llama-server llama-server --llama-args "-dev none -ngl 0 -c 16384"

Three other clients keep the server busy with different long requests meanwhile. Every answer is
hashed; with --llama-server the same happens there. --receipt saves the receipt of Kinetic's last
run and verifies it: the answer is made again alone, with nothing guessed or remembered. Ends
with 1 where Kinetic gives more than one answer or the receipt does not verify.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import itertools
import json
import shlex
import subprocess
import sys
import threading
from pathlib import Path

from _bench import kinetic_program
from _serving import Running, find_llama_server, serving
from _setup import say, stop

QUESTION = "Invent a name for a coffee bar on the Moon, and say in two sentences why it fits."
BUSY = (
    "Describe every room of a large old house, one after the other.",
    "Explain step by step how a letter travels from one continent to another.",
    "Write down the longest dialogue you can between a baker and a miller.",
)


def main() -> int:
    """Ask, hash, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--kinetic", help="the kinetic command [default: the one in .venv]")
    parser.add_argument("--kinetic-args", default="", help="more arguments for kinetic serve")
    parser.add_argument("--receipt", type=Path, help="where the last run's receipt goes")
    parser.add_argument("--llama-server", help="also ask llama-server, which is this command")
    parser.add_argument("--llama-args", default="", help="more arguments for llama-server")
    parser.add_argument("--runs", type=int, default=10, help="how often to ask [10]")
    parser.add_argument("--parallel", type=int, default=4, help="slots of the server [4]")
    parser.add_argument("--max-tokens", type=int, default=200, help="longest answer [200]")
    parser.add_argument("--seed", type=int, default=42, help="the request's seed [42]")
    parser.add_argument("--temp", type=float, default=0.8, help="its temperature [0.8]")
    options = parser.parse_args()

    slots = ("--parallel", str(options.parallel))
    kinetic = kinetic_program(options.kinetic)
    command = [kinetic, "serve", str(options.model), *slots, *shlex.split(options.kinetic_args)]
    print(f"Kinetic, kinetic serve {' '.join(slots)}")
    distinct, receipt = _ask(command, options, receipt=options.receipt is not None)
    failed = distinct != 1
    if options.receipt is not None:
        options.receipt.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
        verify = [kinetic, "verify-receipt", "-m", str(options.model), str(options.receipt)]
        print(f"\n$ {shlex.join(verify)}", flush=True)
        failed |= subprocess.call(verify) != 0
    if options.llama_server is not None:
        program = find_llama_server(options.llama_server)
        if program is None:
            stop(f"there is no {options.llama_server}; build llama.cpp's llama-server.")
        command = [program, "-m", str(options.model), *slots, *shlex.split(options.llama_args)]
        print(f"\nllama.cpp, llama-server {' '.join(slots)}")
        _ask(command, options, receipt=False)
    return 1 if failed else 0


def _ask(command: list[str], options: argparse.Namespace, *, receipt: bool) -> tuple[int, object]:
    """The runs on one server; how many distinct answers, and the last one's receipt."""
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": options.temp,
        "seed": options.seed,
        "max_tokens": options.max_tokens,
    }
    kept, texts = None, []
    say("starting the server")
    with serving(command) as server, _Crowd(server):
        print("run  answer (first 40 characters)                sha256 of the full answer")
        for number in range(1, options.runs + 1):
            last = receipt and number == options.runs
            status, reply = server.send(
                "POST", "/v1/chat/completions", body | ({"receipt": True} if last else {})
            )
            if status != 200:
                stop(f"the server answered {status}: {str(reply)[:300]}")
            message = reply["choices"][0]["message"]
            text = (message.get("reasoning_content") or "") + (message["content"] or "")
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            shown = " ".join(text[:40].split("\n"))
            print(f"{number:3}  {shown:43} {digest}", flush=True)
            texts.append(text)
            kept = reply.get("receipt")
    n = len(set(texts))
    print(f"{n:6} distinct answer{'s' * (n != 1)} in {len(texts)} runs")
    return n, kept


class _Crowd:
    """Clients that ask one long thing after another until the block ends."""

    def __init__(self, server: Running) -> None:
        self._server, self._over = server, threading.Event()
        self._threads = [threading.Thread(target=self._go_on, args=(i,)) for i in range(len(BUSY))]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _go_on(self, number: int) -> None:
        for turn in itertools.count():
            if self._over.is_set():
                return
            # Lengths differ, so that every run meets another mix of neighbours.
            body = {
                "messages": [{"role": "user", "content": f"{BUSY[number]} ({turn})"}],
                "max_tokens": 40 + 17 * ((turn + number) % 5),
                "temperature": 1.0,
            }
            try:
                self._server.send("POST", "/v1/chat/completions", body)
            except (OSError, http.client.HTTPException):
                if not self._over.is_set():
                    say("a request of the crowd failed")


if __name__ == "__main__":
    sys.exit(main())
