"""A few models that `kinetic` alone may propose: small to large, all of supported families.

The sizes are those of the files, so that a proposal needs no connection.
"""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A model worth proposing. *Units*: bytes; `per_token` is what a token reads."""

    asked: str
    """What `kinetic pull` takes."""
    file: str
    size: int
    per_token: int
    good_for: str

    @property
    def name(self) -> str:
        """The name it has once it is here."""
        return self.file.removesuffix(".gguf")


CATALOG = (
    Known(
        "ggml-org/gemma-3-270m-it-GGUF:Q8_0",
        "gemma-3-270m-it-Q8_0.gguf",
        *(291_553_792, 285_000_000),
        "trying things out",
    ),
    Known(
        "Qwen/Qwen3-0.6B-GGUF:Q8_0",
        "Qwen3-0.6B-Q8_0.gguf",
        *(639_446_688, 600_000_000),
        "a small model that thinks and calls tools",
    ),
    Known(
        "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
        "gemma-3-1b-it-Q4_K_M.gguf",
        *(806_058_240, 800_000_000),
        "quick answers on a laptop",
    ),
    Known(
        "Qwen/Qwen3-1.7B-GGUF:Q8_0",
        "Qwen3-1.7B-Q8_0.gguf",
        *(1_834_426_016, 1_830_000_000),
        "everyday questions, with thinking",
    ),
    Known(
        "Qwen/Qwen3-4B-GGUF:Q4_K_M",
        "Qwen3-4B-Q4_K_M.gguf",
        *(2_497_280_256, 2_490_000_000),
        "a capable everyday model",
    ),
    Known(
        "Qwen/Qwen3-8B-GGUF:Q4_K_M",
        "Qwen3-8B-Q4_K_M.gguf",
        *(5_027_783_488, 4_690_000_000),
        "better answers, where memory is fast",
    ),
    Known(
        "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
        "Qwen3-30B-A3B-Q4_K_M.gguf",
        *(18_556_685_824, 2_050_000_000),
        "a large mixture of experts, as quick as a small model",
    ),
)
