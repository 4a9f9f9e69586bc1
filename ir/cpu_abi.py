"""The memory shapes that CPU kernels, the plan executor and the runtime agree on.

Everything here is offsets and sizes in bytes. A *plan* is an array of operation
records; each is one call `kernel(op, thread, threads)` that reads its arguments from
the record. The *step block* holds what changes from step to step.
"""

from __future__ import annotations

WORD = 8

ROWS = 8
"""Output rows that the repacked weight layout interleaves."""

# -- operation record ---------------------------------------------------------------
OP_KERNEL = 0
"""Address of the kernel."""
OP_BARRIER = 8
"""Non-zero: all threads meet after this operation."""
OP_COUNTER = 16
"""Address of the operation's work counter, zero at the start of a step."""
OP_ARGS = 24
"""First argument word."""
OP_MAX_ARGS = 21
OP_SIZE = OP_ARGS + OP_MAX_ARGS * WORD

# -- step block -----------------------------------------------------------------------
STEP_ROWS = 0
"""T: rows of this step."""
STEP_OUTPUTS = 8
"""R: rows whose outputs are wanted."""
STEP_TOKENS = 16
"""Pointer to i32[T] token ids."""
STEP_POSITIONS = 24
"""Pointer to i32[T]: each row's logical position on its own path."""
STEP_SLOTS = 32
"""Pointer to i64[T]: the cache slot a row writes, page * PAGE + offset."""
STEP_PAGES = 40
"""Pointer to i64[T]: address of each row's page table, i32 page numbers."""
STEP_OUT_ROWS = 48
"""Pointer to i32[R]: the rows whose outputs are wanted."""
STEP_STATE_IN = 56
"""Pointer to i32[T]: the slot whose state a row goes on from, `CONTINUE` or `FRESH`."""
STEP_STATE_OUT = 64
"""Pointer to i32[T]: the slot that keeps the state after a row, or `NOT_KEPT`."""
STEP_LAST = 72
"""Pointer to i32[T]: the position of the last row of each row's text, in models of whole texts."""
STEP_HIDDEN = 80
"""Pointer to f32[T, D]: the vectors that come with the rows of a drafting block."""
STEP_SIZE = 128

CONTINUE = -1
"""A row goes on from the state after the row before it in the step."""
FRESH = -2
"""A row goes on from a state of zeros: it is the first of its sequence."""
NOT_KEPT = -1
"""The state after a row is only for the next row."""

# -- quantized activations, block-major: block b of row t is at (b * T + t) * stride ----
ACT32_SCALE = 32
ACT32_SUM = 36
ACT32_STRIDE = 40
"""32 int8 | scale f32 | sum of the int8 i32."""

ACT256_SUMS16 = 256
ACT256_SUMS32 = 288
ACT256_SCALE = 304
ACT256_STRIDE = 320
"""256 int8 | 16 sums of 16 i16 | 8 sums of 32 i16 | scale f32 | padding."""

# -- cache pages ------------------------------------------------------------------------
PAGE = 64
"""Positions of a page; equals the contract's TILE."""
SEGMENT = 512
"""Positions of an attention segment."""

KERNEL_ARGS = (("ptr", "op"), ("i64", "ith"), ("i64", "nth"))


def act_stride(block: int) -> int:
    """Bytes of one quantized activation block."""
    return ACT32_STRIDE if block == 32 else ACT256_STRIDE


# -- worker pool ---------------------------------------------------------------------------
# Offsets in the pool's control block; words that different threads write are on cache
# lines of their own.
# Byte 0 is the epoch, which each run advances.
POOL_ARRIVALS = 64
POOL_SLEEPERS = 128
POOL_OPS = 192
POOL_COUNT = 200
POOL_THREADS = 208
POOL_STOP = 216
POOL_SPINS = 224
POOL_COUNTERS = 232
"""Address of one work counter for each operation, cleared at the start of a run."""
POOL_THREAD_LINES = 256
"""One cache line a thread: arrivals it has counted."""


def pool_size(threads: int) -> int:
    """Bytes of the control block."""
    return POOL_THREAD_LINES + 64 * threads
