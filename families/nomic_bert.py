"""Nomic Embed: BERT with rotary positions, gated feed-forwards and no biases in its matrices.

*Source:* Nussbaum et al. 2024, arXiv:2402.01613.
"""

from __future__ import annotations

from kinetic.families.common import finish, gated_ffn
from kinetic.families.encoder import attended, embedded, layer_norm, read_encoder
from kinetic.families.pooling import pooled
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import CacheSpec, Graph


def build(file: GGUFFile) -> Graph:
    """The graph of a nomic-bert file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), read_encoder(file)

    caches: dict[str, CacheSpec] = {}
    x = embedded(b, cfg, table=False)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{i}"):
            a = attended(b, x, cfg, i, caches, turns=True)
            x = layer_norm(b, b.add(x, a, "attn_residual"), "attn_output_norm", cfg)
            y = gated_ffn(b, x, cfg)
            x = layer_norm(b, b.add(x, y, "ffn_residual"), "layer_output_norm", cfg)
    return finish(b, cfg, pooled(b, x, cfg), caches)
