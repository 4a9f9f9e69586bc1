"""Encoders: floats to the blocks of each weight type, as machine code made here.

llama.cpp's encoders search each group of a block for the scale (and minimum) with the least
weighted error. Their bytes follow from float32 sums taken in order, so eight *groups* run side
by side in a vector's lanes, each with its own sums in order, and the words are those of the
scalar code. What follows the search runs along the values. Division and square root are
IEEE's here, and nothing is fused: encoders stand outside the arithmetic contract.

    lanes.py      vocabulary: lanes of groups, rounding, division
    search.py     the searches, each over eight groups at once
    simple.py     Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4, F16, BF16
    k_quants.py   Q2_K to Q6_K
    nonlinear.py  IQ4_NL, IQ4_XS
    compiled.py   the kernels compiled, cached and called

*Source*: ggml's `ggml-quants.c`, for the steps of each search and their order.
"""
