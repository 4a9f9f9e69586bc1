"""TQ1_0: 256 ternary values, five to a byte, one f16 scale.

A byte is a fraction of 256 whose digits in base 3 are the codes; times 3^n, modulo 256, its
first digit is value `n`. Bytes: 48 of five digits, in parts of 32 and 16 whose digits `n` lie
together | 4 of four digits | d f16. Source: ggml `block_tq1_0`.
"""

from kinetic.ir.quant.base import BlockFormat, Digits


def _at(run: int) -> tuple[int, tuple[int, ...]]:
    if run < 10:
        return 16 * (run % 2), (3 ** (run // 2),)
    return (32, (3 ** (run - 10),)) if run < 15 else (48, (1, 3, 9, 27))


TQ1_0 = BlockFormat(
    name="TQ1_0",
    ggml_id=34,
    values=256,
    nbytes=54,
    planes=(Digits(3, _at, bits=2),),
    d=52,
    zero=1,
    dequantize=lambda d, dmin, s, m, q: q * d,
)
