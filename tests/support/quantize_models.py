"""Small F16 models and importance matrices whose quantized files' hashes are golden.

A change here changes the hashes: `golden/quants/README.md` says how they are made again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.tiny_models import tiny_model

from kinetic.ir.gguf import GGUFFile
from kinetic.quantize.importance import ImportanceMatrix, Matrix

TOKENS = 37


def dense(path: Path) -> Path:
    """Nine layers, so that the mixtures of types differ between layers; rows of 256 and 288."""
    sizes = {"n_layers": 9, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "n_vocab": 320}
    return tiny_model("llama", path, seed=11, formats="F16", n_embd=256, n_ff=288, **sizes)


def mixture(path: Path) -> Path:
    """Experts, for the targets that treat them apart."""
    return tiny_model("qwen3moe", path, seed=12, formats="F16", n_layers=2, n_vocab=320)


def importance(model: Path) -> ImportanceMatrix:
    """Invented importance of a model's layers; the last expert was never reached."""
    rng = np.random.default_rng(0)
    matrices = {}
    with GGUFFile.open(model) as file:
        for name, info in file.tensors.items():
            if not name.startswith("blk.") or len(info.shape) < 2:
                continue
            count = info.shape[0] if len(info.shape) == 3 else 1
            # Multiples of 2^-10: exact, whatever the generator's conversion does.
            steps = rng.integers(1, 1 << 20, (count, info.shape[-1]))
            counts = np.full(count, TOKENS, np.int64)
            if count > 1:
                counts[-1], steps[-1] = 0, 0
            matrices[name] = Matrix((steps / 1024).astype(np.float32), counts)
    return ImportanceMatrix(matrices, ("a text.txt",), 3, 512)
