"""Sets the float scale of random blocks, wherever a format keeps it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.ir.quant.base import BlockFormat


def put_d(fmt: BlockFormat, raw: NDArray[np.uint8], d: NDArray[np.floating]) -> None:
    """Make `d` (about) the scale of blocks `raw [..., nbytes]`; it may be any f16.

    Of e8m0 and e4m3 scales the nearest below that there is, so Inf and NaN become large.
    """
    with np.errstate(over="ignore"):
        half = (np.asarray(d, np.float64) / fmt.d_factor).astype("<f2")
    bits = half.view("<u2")
    if fmt.d_e8m0:
        exponent = np.frexp(np.abs(np.nan_to_num(half.astype(np.float64))))[1]
        raw[..., fmt.d] = np.clip(exponent + 127, 0, 255)
    elif fmt.update is not None:
        scale = np.minimum((bits & 0x7FFF) >> 7, 0x7E).astype(np.uint8)
        raw[..., : fmt.values // fmt.update] = scale[..., None]
    elif fmt.name == "IQ1_M":
        for i in range(4):
            high = ((bits >> (4 * i)) & 15).astype(np.uint8) << 4
            raw[..., fmt.d + 1 + 2 * i] = raw[..., fmt.d + 1 + 2 * i] & 15 | high
    else:
        raw[..., fmt.d : fmt.d + 2] = half[..., None].view(np.uint8)
