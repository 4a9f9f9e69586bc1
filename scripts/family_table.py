#!/usr/bin/env python3
"""How far each family is from llama.cpp, as one table: the tiny golden models, run on this CPU.

    python3 scripts/family_table.py [--golden FOLDER]

Logits: the largest difference over three prompts from an F32 file with an F32 cache (limit 3e-4),
against llama.cpp without its table of halves where a model has GELU. Greedy: tokens compared, all
before the first near-tie, and how many are equal. Quantized: the root mean square distance from
the same weights as F32, over llama.cpp's own (limit 2). Vectors and scores: the lowest cosine,
the largest difference. Exit 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _bench import table

from kinetic import settings
from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.ops.arithmetic import softmax
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine, Work

Floats = npt.NDArray[np.float32]
ROOT = Path(__file__).resolve().parent.parent
LOGITS, COSINE, SCORE, RATIO = 3e-4, 0.9999, 1e-3, 2.0
GELU = ("gemma3", "gemma4")
"""Their greedy tokens come from a GELU of halves, which moves logits by so much:"""
GELU_MOVES = 5e-2
HEAD = ("family", "models", "logits", "greedy", "cosine", "score", "quantized", "ratio")


@dataclass
class Found:
    """What one family's models gave."""

    models: int = 0
    logits: list[float] = field(default_factory=list)
    compared: int = 0
    equal: int = 0
    cosines: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def row(self, name: str) -> tuple[str, ...]:
        """The family's line."""
        greedy = f"{self.equal}/{self.compared}" if self.compared else ""
        return (
            *(name, str(self.models), _worst(self.logits, "1.1e"), greedy),
            _worst([1 - c for c in self.cosines], "1.0e", "1 - "),
            *(_worst(self.scores, "1.0e"), str(len(self.ratios) or ""), _worst(self.ratios, ".2f")),
        )

    def fine(self) -> bool:
        """Whether it is within all limits."""
        return (
            max(self.logits, default=0.0) < LOGITS
            and self.equal == self.compared
            and min(self.cosines, default=1.0) > COSINE
            and max(self.scores, default=0.0) < SCORE
            and max(self.ratios, default=0.0) <= RATIO
        )


def main() -> int:
    """Run every golden model and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    golden = ROOT.parent / "shared" / "golden"
    parser.add_argument("--golden", type=Path, default=golden, help="folder with the models")
    folder = parser.parse_args().golden
    found: defaultdict[str, Found] = defaultdict(Found)
    for name, arch, _ in _manifest(folder, "manifest.json"):
        _compare(folder, name, found[arch], arch)
    for name, arch, rms in _manifest(folder, "manifest_quant.json"):
        found[arch].ratios.append(_distance(folder, name) / rms)
    print(table(HEAD, [found[name].row(name) for name in sorted(found)]))
    return int(not all(each.fine() for each in found.values()))


def _manifest(folder: Path, name: str) -> Iterator[tuple[str, str, float]]:
    """Each model's name, its architecture, and llama.cpp's own distance from its weights."""
    found = json.loads((folder / "models" / name).read_text(encoding="utf-8"))
    for model, entry in found.items():
        yield model, entry["arch"], entry.get("act_quant_err", {}).get("rms", 0.0)


def _compare(folder: Path, name: str, found: Found, arch: str) -> None:
    """One F32 model: logits and greedy tokens, or vectors and scores."""
    answers = np.load(folder / "logits" / f"{name}.npz")
    found.models += 1
    with _engine(folder / "models" / f"{name}.gguf") as run:
        (output, *_) = run.device.program.outputs
        for i in range(3):
            tokens = answers[f"tokens_{i}"].tolist()
            if output != "logits":
                got = _last(run, tokens, output)
                got = softmax(got[None])[0] if len(got) > 1 and output == "scores" else got
                exact = f"pooled_exactgelu_{i}"
                want = answers[exact if exact in answers else f"pooled_{i}"]
                if output == "scores":
                    found.scores.append(float(np.abs(got - want).max()))
                else:
                    both = np.linalg.norm(got) * np.linalg.norm(want)
                    found.cosines.append(float((got * want).sum(dtype=np.float64) / both))
                continue
            exact = f"logits_exactgelu_{i}"
            want = answers[exact if exact in answers else f"logits_{i}"]
            found.logits.append(float(np.abs(_rows(run, tokens) - want).max()))
            _greedy(run, answers, i, found, 2 * (GELU_MOVES if arch in GELU else LOGITS))


def _greedy(
    run: Engine, answers: Mapping[str, npt.NDArray[np.generic]], i: int, found: Found, gap: float
) -> None:
    """Tokens up to the first whose two best are nearer than `gap`."""
    sequence = run.new_sequence()
    logits = run.prefill(sequence, answers[f"tokens_{i}"].tolist())
    sure = np.asarray(answers[f"gap_{i}"]) >= gap
    count = len(sure) if sure.all() else int(sure.argmin())
    for token in answers[f"greedy_{i}"][:count].tolist():
        found.compared += 1
        found.equal += int(logits.argmax()) == token
        logits = run.decode(sequence, token)
    sequence.close()


def _distance(folder: Path, name: str) -> float:
    """Of a quantized model's logits from those of its weights as F32, root mean square."""
    answers, squares = np.load(folder / "logits" / f"{name}.npz"), []
    with _engine(folder / "models" / f"{name}.gguf") as run:
        for i in range(3):
            got = _rows(run, answers[f"tokens_{i}"].tolist()).astype(np.float64)
            squares.append(np.square(got - answers[f"logits_f32_{i}"]).ravel())
    return float(np.sqrt(np.concatenate(squares).mean()))


@contextmanager
def _engine(path: Path) -> Iterator[Engine]:
    """A model with an F32 cache; all rows of a step may be asked for."""
    with GGUFFile.open(path) as file:
        cache = settings.cache_dir() / "kernels"
        program = compile_graph(
            build(file),
            cpu_target(),
            kv_type="f32",
            max_rows=128,
            max_outputs=128,
            object_cache=cache,
        )
        n_ctx = min(512, build(file).meta.n_ctx_train)
        pages = Engine.pages_for(n_ctx)
        cpu = CpuDevice(program, file, threads=2, n_ctx=n_ctx, n_pages=pages)
        try:
            yield Engine(cpu, n_ctx, pages)
        finally:
            cpu.close()


def _rows(run: Engine, tokens: list[int]) -> Floats:
    """Logits after each token."""
    sequence = run.new_sequence()
    (logits,) = run.step([Work(sequence, tokens, len(tokens))])
    sequence.close()
    return logits.copy()


def _last(run: Engine, tokens: list[int], output: str) -> Floats:
    """A text's vector or scores."""
    sequence = run.new_sequence()
    (rows,) = run.step([Work(sequence, tokens, 1)], output)
    sequence.close()
    return rows[0].copy()


def _worst(values: list[float], shape: str, before: str = "") -> str:
    return f"{before}{max(values):{shape}}" if values else ""


if __name__ == "__main__":
    sys.exit(main())
