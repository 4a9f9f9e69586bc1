"""A split model generates what the same model in one file does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.gguf_writer import write_gguf
from support.tiny_models import tiny_model

from kinetic.api import Model, SamplingParams
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.gguf_strings import StringArray


def split(path: Path, count: int) -> list[Path]:
    """Write a model again in parts, as llama-gguf-split does."""
    parts = []
    with GGUFFile.open(path) as file:
        metadata: dict[str, object] = {}
        for key, value in file.metadata.items():
            kind = file.type_name(key)
            number = kind.startswith(("uint", "int", "float"))
            metadata[key] = np.dtype(kind).type(value) if number else value  # type: ignore[call-overload]
            if isinstance(value, StringArray):
                metadata[key] = list(value)
        names = list(file.tensors)
        for no in range(count):
            keys = {
                "split.no": np.uint16(no),
                "split.count": np.uint16(count),
                "split.tensors.count": np.int32(len(names)),
            }
            tensors = {
                name: (info.shape, info.type_id, bytes(file.data(name)))
                for name, info in file.tensors.items()
                if names.index(name) % count == no
            }
            target = path.with_name(f"big-{no + 1:05}-of-{count:05}.gguf")
            write_gguf(target, {**(metadata if no == 0 else {}), **keys}, tensors)
            parts.append(target)
    return parts


def answer(path: Path, mmap: bool) -> list[int]:
    model = Model.load(path, ctx_size=128, mmap=mmap)
    try:
        prompt = model.encode_prompt("Hello", raw=True)
        greedy = SamplingParams(temperature=0.0)
        return [piece.token_id for piece in model.generate(prompt, greedy, max_tokens=12)]
    finally:
        model.close()


@pytest.mark.parametrize("mmap", [True, False])
def test_parts_answer_as_the_whole_does(tmp_path, mmap):
    whole = tiny_model("llama", tmp_path / "m.gguf")
    parts = split(whole, 3)
    wanted = answer(whole, mmap)
    assert answer(parts[0], mmap) == answer(parts[2], mmap) == wanted
