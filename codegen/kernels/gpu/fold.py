"""The pairwise tree that ends every sum of the contract, over shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinetic.codegen.kernels.builder import Array, Builder, Value


def fold(
    k: Builder,
    array: Array,
    firsts: Sequence[Value],
    lane: Value,
    count: int,
    combine: Callable[[Value, Value], Value],
) -> None:
    """Leave in `array[first]` the `count` elements from there, combined in halves.

    `r[i] = combine(r[i], r[i + count/2])`, then again with half as many, as section 2 of
    the contract says. The thread of lane `i` does element `i`; all threads of the workgroup
    have to call, after a barrier, and are past another one when it returns. `firsts` are
    independent folds that share the barriers.
    """
    half = count // 2
    while half:
        with k.if_(lane < half):
            for first in firsts:
                here = first + lane
                array[here] = combine(array[here], array[here + half])
        k.barrier()
        half //= 2
