"""Cosines and sines of the positions of a step, for devices that take them with the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kinetic.ir.program import RopeTable
from kinetic.ir.rope_tables import RopeScaling, rope_table

Floats = npt.NDArray[np.float32]
GROWTH = 1024
"""Positions by which a table grows."""


class RopeRows:
    """One rope table, filled as positions are reached."""

    def __init__(self, table: RopeTable, n_ctx: int, factors: Floats | None):
        attrs: dict[str, Any] = dict(table.attrs)
        self._rot, self._base, self._n_ctx = attrs["rot"], attrs["base"], n_ctx
        self._scaling = RopeScaling(
            attrs["scaling"] or "none",
            attrs["factor"],
            attrs["n_ctx_orig"],
            attrs["attn_factor"],
        )
        self._factors = factors
        self._cos = self._sin = np.zeros((0, self._rot // 2), np.float32)

    def at(self, positions: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
        """Both for these positions. *Shapes*: f32 [T, rot / 2]."""
        filled, last = len(self._cos), int(positions.max())
        if last >= filled:
            more = np.arange(filled, min(self._n_ctx, -(-(last + 1) // GROWTH) * GROWTH))
            cos, sin = rope_table(
                more, self._rot, self._base, scaling=self._scaling, freq_factors=self._factors
            )
            self._cos = np.concatenate([self._cos, cos.astype(np.float32)])
            self._sin = np.concatenate([self._sin, sin.astype(np.float32)])
        return self._cos[positions], self._sin[positions]
