"""How much memory a program takes, and how much this machine lets it have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from kinetic.errors import ContextError
from kinetic.ir.cpu_abi import PAGE
from kinetic.ir.program import Program

SMALLEST_CTX = 4096
"""A context that nobody asked for is not shrunk below this."""
_CTX_STEP = 1024
MOST_PARALLEL = 4
"""Requests at once, unless somebody asks for more."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a loaded program takes: repacked weights, caches and recurrent states when
    full, work space."""

    weights: int
    cache: int
    work: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.work


def page_bytes(program: Program) -> int:
    """What a page takes in all layers' caches."""
    return sum(2 * layout.page_bytes for layout in program.caches.values())


def memory_of(
    program: Program, n_pages: int, n_slots: int = 1, draft: Program | None = None
) -> Memory:
    """What a program takes with so many cache pages and slots of recurrent state, and with it
    the prediction block `draft`, which has as many pages and shares the matrices of both."""
    packed, pages, work = set(program.packed), page_bytes(program), program.arena_bytes
    if draft is not None:
        packed.update(draft.packed)
        pages, work = pages + page_bytes(draft), work + draft.arena_bytes
    cache = n_pages * pages + n_slots * program.slot_bytes
    return Memory(sum(w.nbytes for w in packed), cache, work)


def free_memory() -> int:
    """Bytes that this process could still take without others having to give any back."""
    return min(int(psutil.virtual_memory().available), usable_memory())


def usable_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's."""
    total = int(psutil.virtual_memory().total)
    try:
        limit = (root / "memory.max").read_text().strip()
        return min(total, int(limit)) if limit != "max" else total
    except (OSError, ValueError):
        return total


def parallel_that_fits(
    program: Program, n_ctx: int, *, free: int, draft: Program | None = None
) -> int:
    """How many requests, each with a whole context, half the memory has room for that `free`
    leaves once the model is loaded; up to `MOST_PARALLEL`, and one at least.

    *Units*: `free` in bytes.
    """
    fixed = memory_of(program, 0, n_slots=0, draft=draft).total
    each = memory_of(program, -(-n_ctx // PAGE), draft=draft).total - fixed
    return max(1, min(MOST_PARALLEL, (free - fixed) // 2 // max(1, each)))


def context_that_fits(
    program: Program,
    asked: int,
    *,
    explicit: bool,
    usable: int,
    parallel: int = 1,
    draft: Program | None = None,
) -> int:
    """The context to run with: `asked`, or less if nobody asked and it would not fit, each of
    `parallel` requests having one, also in the prediction block `draft` if there is one.

    *Units*: contexts in positions, `usable` in bytes.

    *Raises* `ContextError` where even the smallest does not fit.
    """
    fixed = memory_of(program, 0, draft=draft).total
    page = parallel * (page_bytes(program) + (0 if draft is None else page_bytes(draft)))
    n_ctx = asked
    while fixed + -(-n_ctx // PAGE) * page > usable:
        smaller = (n_ctx - 1) // _CTX_STEP * _CTX_STEP
        if explicit or smaller < SMALLEST_CTX:
            times, lower = ("", "") if parallel == 1 else (f" {parallel} times", " or --parallel")
            raise ContextError(
                f"the model takes {fixed / 2**30:.1f} GiB and its cache for{times} {n_ctx} tokens "
                f"{-(-n_ctx // PAGE) * page / 2**30:.1f} GiB, but this machine has "
                f"{usable / 2**30:.1f} GiB; lower -c{lower} or use a smaller model"
            )
        n_ctx = smaller
    return n_ctx
