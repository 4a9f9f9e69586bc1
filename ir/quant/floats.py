"""The formats that store plain floats: F32, F16 and BF16. Source: ggml's type traits."""

from kinetic.ir.quant.base import FloatFormat

F32 = FloatFormat("F32", ggml_id=0, nbytes=4)
F16 = FloatFormat("F16", ggml_id=1, nbytes=2)
BF16 = FloatFormat("BF16", ggml_id=30, nbytes=2)
