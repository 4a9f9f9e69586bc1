"""`kinetic bench --compare`: llama.cpp's llama-bench on the same file, and a card with both.

llama-bench runs as its own process, once per repetition and only while Kinetic rests, with
the same threads, on the CPU, flash attention on. It is looked for, never downloaded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic._version import __version__
from kinetic.errors import KineticError, UsageError

if TYPE_CHECKING:
    from kinetic.cli.bench import BenchResult

_TIMEOUT_SECONDS = 3600


def _installed() -> str | None:
    """llama-bench on PATH, or in a folder where llama.cpp is usually installed or built."""
    home = Path.home()
    folders = (
        *(home / "llama.cpp/build/bin", home / ".local/bin"),
        *(Path("/usr/local/bin"), Path("/opt/llama.cpp/bin"), Path("/opt/homebrew/bin")),
        Path("C:/llama.cpp"),
    )
    places = (None, *map(str, folders))
    return next((p for f in places if (p := shutil.which("llama-bench", path=f))), None)


class PeerResult(NamedTuple):
    """What llama-bench measured. Units: tokens per second."""

    build: str
    prefill_tokens_per_second: float
    decode_tokens_per_second: float


class Peer(NamedTuple):
    """A llama-bench program and the model it is to run."""

    program: str
    model: Path

    @classmethod
    def find(cls, typed: str, model: Path) -> Peer:
        """The llama-bench that was named, or the one on PATH.

        Raises: UsageError when there is none.
        """
        # A folder of llama.cpp's programs is as good as the program's own path.
        path = str(Path(typed, "llama-bench")) if typed and Path(typed).is_dir() else typed
        program = shutil.which(path) if path else _installed()
        if program is None:
            what = (
                f"there is no program {path}"
                if path
                else "llama-bench is not on PATH, nor where llama.cpp is usually installed"
            )
            raise UsageError(f"{what}; build llama.cpp and give it: --compare path/llama-bench.")
        return cls(program, model)

    def command(self, threads: int) -> list[str]:
        """The command line of one repetition."""
        from kinetic.cli.bench import DECODE_TOKENS, PREFILL_TOKENS

        return [
            *(self.program, "-m", str(self.model), "-o", "json", "-r", "1"),
            *("-p", str(PREFILL_TOKENS), "-n", str(DECODE_TOKENS), "-t", str(threads)),
            *("-ngl", "0", "-dev", "none", "-fa", "1"),
        ]

    def measure(self, threads: int) -> PeerResult:
        """Run both tests once.

        Raises: KineticError when llama-bench fails or prints something unknown.
        """
        try:
            done = subprocess.run(
                self.command(threads),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KineticError(f"{self.program} did not end within an hour.") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].rstrip(". ")
            raise KineticError(f"{self.program} failed with {done.returncode}: {last}.")
        return parse(done.stdout)


def parse(text: str) -> PeerResult:
    """Read llama-bench's JSON. Raises: KineticError when it is not that."""
    try:
        tests = json.loads(text)
        prefill = [max(test["samples_ts"]) for test in tests if test["n_gen"] == 0]
        decode = [max(test["samples_ts"]) for test in tests if test["n_prompt"] == 0]
        build = f"b{tests[0]['build_number']} ({tests[0]['build_commit']})"
        return PeerResult(build, max(prefill), max(decode))
    except (ValueError, KeyError, TypeError, IndexError):
        raise KineticError("llama-bench did not print the JSON that was expected.") from None


def best(results: list[PeerResult]) -> PeerResult:
    """The best of each test, as Kinetic takes its own best."""
    return PeerResult(
        results[0].build,
        max(result.prefill_tokens_per_second for result in results),
        max(result.decode_tokens_per_second for result in results),
    )


def card(ours: BenchResult, theirs: PeerResult) -> str:
    """A markdown card with both engines' speeds and the ratios."""
    from kinetic.cli.machine import machine_line

    rows = (
        ("prompt pp512", ours.prefill_tokens_per_second, theirs.prefill_tokens_per_second),
        ("generate tg128", ours.decode_tokens_per_second, theirs.decode_tokens_per_second),
    )
    edit = f"| edit{ours.edit_tokens} | {ours.edit_tokens_per_second:.1f} | - | - |\n"
    table = "".join(f"| {test} | {a:.1f} | {b:.1f} | {a / b:.2f}x |\n" for test, a, b in rows)
    return (
        f"## Kinetic vs llama.cpp: {ours.model.removesuffix('.gguf')}\n\n"
        f"| test | Kinetic {__version__} | llama.cpp {theirs.build} | ratio |\n"
        f"| --- | ---: | ---: | ---: |\n{table}{edit}\n"
        f"{machine_line()}\n"
        f"Same file ({ours.size_bytes / 2**30:.2f} GiB, {ours.weights}), on {ours.device}, "
        f"{ours.threads} threads, flash attention on, in turns, best of {ours.repetitions}, t/s.\n"
        f"Kinetic: load {ours.load_seconds:.2f} s, peak memory "
        f"{ours.peak_rss_bytes / 2**30:.2f} GiB, speed technologies {ours.technologies}.\n"
        f"edit{ours.edit_tokens}: greedy copy of a file with one rename, which llama-bench has no "
        f"test for; identical to plain decoding: {'yes' if ours.edit_identical else 'NO'}.\n"
    )


def card_json(ours: BenchResult, theirs: PeerResult) -> str:
    """The card as one JSON object."""
    from kinetic.cli.machine import machine_line

    prefill = ours.prefill_tokens_per_second / theirs.prefill_tokens_per_second
    decode = ours.decode_tokens_per_second / theirs.decode_tokens_per_second
    both = {
        "machine": machine_line(),
        "kinetic": {"version": __version__, **ours._asdict()},
        "llama_cpp": theirs._asdict(),
        "ratio": {"prefill": round(prefill, 3), "decode": round(decode, 3)},
    }
    return json.dumps(both, indent=2) + "\n"
