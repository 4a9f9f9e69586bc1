#!/usr/bin/env python3
"""Greedy answers of Kinetic and llama.cpp to the same prompts, token by token, as a table.

    python3 scripts/conformance.py --models FOLDER --llama-dir llama.cpp/build/bin

Both engines round activations to eight bits, each in its own way, so a near-tie may fall to
either side: where Kinetic's best two logits are less than 0.25 nats apart at the first
difference, the rest of that answer is not compared. At any other difference llama.cpp is asked
again with its own equal ways of computing (OTHER_WAYS): where one of them gives Kinetic's
answer, llama.cpp does not agree with itself, and the table names the way. What is left is an
error (exit 1).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from _bench import llama_program, table
from _setup import say, stop

MODELS = ("gemma-3-270m-Q4_K_M.gguf", "qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf")
NEAR_TIE = 0.25
"""Nats between the best two tokens below which either engine may choose either."""
CONTEXT = 1024
OTHER_WAYS = (("--no-repack",), ("-b", "1", "-ub", "1"), ("-fa", "off"))
"""Options of llama.cpp that change the order of its sums and nothing else."""
END = b" [end of text]"
"""What llama.cpp prints after the token that ends an answer."""

PROMPTS = {
    "prose": "The capital of France is",
    "story": "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "python": "def quicksort(items):\n    if len(items) <= 1:\n        return items\n",
    "c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "german": "Die wichtigsten Sehenswürdigkeiten in Berlin sind",
    "chinese": "从前有一座山，山里有一座庙，",  # noqa: RUF001 (their comma)
    "numbers": "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "json": '{"name": "Ada Lovelace", "born": 1815, "occupation": "',
}


@dataclass(frozen=True)
class Answer:
    """Our greedy tokens as bytes; at each the second best, and how far it was behind."""

    pieces: list[bytes]
    seconds: list[bytes]
    gaps: list[float]


@dataclass(frozen=True)
class Verdict:
    """How far two answers agree, and whether that may stand."""

    equal: str
    where: str
    gap: str
    text: str
    fine: bool


def main() -> int:
    """Run both, and print the table."""
    options = _options()
    program = llama_program("llama-completion", options.llama_dir)
    rows, wrong = [], False
    for name in MODELS:
        file = options.models / name
        if not file.is_file():
            stop(f"there is no {name} in {options.models}; give its folder with --models.")
        say(f"{name}: Kinetic")
        ours = _answers(file, options)
        for label, answer in ours.items():
            say(f"{name}: llama.cpp, {label}")
            verdict = _compare(answer, program, file, PROMPTS[label], options)
            rows.append((file.stem, label, verdict.equal, verdict.where, verdict.gap, verdict.text))
            wrong |= not verdict.fine
    head = ("model", "prompt", "tokens equal", "first difference", "gap, nats", "verdict")
    print(table(head, rows))
    return int(wrong)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = Path.home() / ".cache" / "kinetic-test-models"
    parser.add_argument("--models", type=Path, default=cache, help="folder with the two files")
    parser.add_argument("--llama-dir", help="folder with llama.cpp's programs [default: PATH]")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens of each answer")
    return parser.parse_args()


def _answers(file: Path, options: argparse.Namespace) -> dict[str, Answer]:
    """Our greedy answers by the prompts' labels."""
    from kinetic.api import Model

    model = Model.load(file, threads=options.threads, ctx_size=CONTEXT)
    found = {}
    for label, prompt in PROMPTS.items():
        sequence, answer = model.engine.new_sequence(), Answer([], [], [])
        logits = model.engine.prefill(sequence, model.encode_prompt(prompt, raw=True))
        for _ in range(options.tokens):
            token, second = (int(t) for t in (-logits).argsort(kind="stable")[:2])
            answer.pieces.append(model.tokenizer.decode_bytes([token], render_special=True))
            answer.seconds.append(model.tokenizer.decode_bytes([second], render_special=True))
            answer.gaps.append(float(logits[token] - logits[second]))
            if token in model.tokenizer.end_ids:
                break
            logits = model.engine.decode(sequence, token)
        sequence.close()
        found[label] = answer
    model.close()
    return found


def _compare(
    answer: Answer, program: str, file: Path, prompt: str, options: argparse.Namespace
) -> Verdict:
    """Our answer against llama.cpp's, and where it is another, against its other ways."""
    first = _verdict(answer, _llama_answer(program, file, prompt, options))
    for way in () if first.fine else OTHER_WAYS:
        again = _verdict(answer, _llama_answer(program, file, prompt, options, way))
        if again.fine:
            return replace(first, text=f"{again.text} with {' '.join(way)}", fine=True)
    return first


def _llama_answer(
    program: str,
    file: Path,
    prompt: str,
    options: argparse.Namespace,
    way: tuple[str, ...] = (),
) -> bytes:
    """What llama.cpp prints: the text of its greedy tokens, then perhaps END, then newlines."""
    command = [
        *(program, "-m", str(file), "-p", prompt, "-n", str(options.tokens), "--temp", "0"),
        *("-t", str(options.threads), "-c", str(CONTEXT), "-ngl", "0", "-dev", "none"),
        *("-no-cnv", "--no-display-prompt", "--no-escape", "--special", "--no-warmup", *way),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        error = done.stderr.decode(errors="replace").strip()[-500:]
        stop(f"{program} failed with {done.returncode}: {error}")
    return done.stdout


def _verdict(answer: Answer, theirs: bytes) -> Verdict:
    """Walk our tokens along their text."""
    at, left = 0, theirs
    for piece in answer.pieces:
        if not left.startswith(piece):
            break
        at, left = at + 1, left[len(piece) :]
    count = len(answer.pieces)
    if at == count and not left.removeprefix(END).strip(b"\n"):
        return Verdict(f"{at}/{count}", "", "", "equal", True)
    at = _first_difference(answer, theirs, min(at, count - 1))
    ours, before = b"".join(answer.pieces[at:]), len(b"".join(answer.pieces[:at]))
    where = f"{_shown(ours)} / {_shown(theirs[before:])}"
    fine = answer.gaps[at] < NEAR_TIE
    text = "near-tie" if fine else "DIFFERENT"
    return Verdict(f"{at}/{count}", where, f"{answer.gaps[at]:.3f}", text, fine)


def _first_difference(answer: Answer, theirs: bytes, at: int) -> int:
    """The token where they chose another one, given that their text leaves ours at token `at`.

    Their token may begin as ours does and be longer: then it was chosen further ahead.
    """
    leaves = len(b"".join(answer.pieces[:at]))
    for earlier in range(max(0, at - 4), at):
        start = len(b"".join(answer.pieces[:earlier]))
        second = answer.seconds[earlier]
        if theirs[start:].startswith(second) and start + len(second) > leaves:
            return earlier
    return at


def _shown(text: bytes) -> str:
    return f"`{text[:12].decode(errors='replace')!r}`".replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
