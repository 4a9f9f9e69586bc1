"""Attention over a paged f16 cache (section 7 of the arithmetic contract).

Two kernels. `attention_segments` gives one segment of one query head to a workgroup: its
64 threads are the 64 positions of a tile while scores are made, and the channels of the
head while values are added. `attention_merge` joins a row's segments in ascending order.
A tile is a page of the cache, found through the row's page table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from kinetic.codegen.kernels.builder import F32, U32, Array, Builder, Kernel, Type, Value, Variable
from kinetic.codegen.kernels.gpu.fold import fold
from kinetic.codegen.kernels.math_words import MathWords
from kinetic.ir import math

TILE = 64
TILES = 8
"""Tiles of a segment."""
SEGMENT = TILE * TILES
SCORE_CHAINS = 4
SUM_CHAINS = 8
NO_SCORE = -1e30


@dataclass(frozen=True)
class Heads:
    """What a layer's attention looks like; fixed when its kernels are made."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None


class Segments:
    """Partial results: `m`, `total` (the contract's `l`) f32 [T, H, S], `acc` f32 [T, H, S, Dh]."""

    def __init__(self, k: Builder, heads: Heads) -> None:
        self._k, self._heads = k, heads
        self.m = k.buffer("segment_m", F32)
        self.total = k.buffer("segment_total", F32)
        self.acc = k.buffer("segment_acc", F32)

    def number(self, row: Value, head: Value, segment: Value, segments: Value) -> Value:
        """Index of a segment of a row's head; `segments` is S."""
        return (row * self._heads.n_heads + head) * segments + segment


class View:
    """The positions a row sees: `first` to `length - 1`, and the segments they lie in."""

    def __init__(self, k: Builder, lengths: Array, row: Value, window: Value) -> None:
        self.length = lengths[row]
        limited = self.length > window
        self.first = k.select(limited, self.length - window, k.const(U32, 0))
        self.first_segment = self.first // SEGMENT
        self.segments = (self.length - 1) // SEGMENT - self.first_segment + 1


@cache
def attention_segments(heads: Heads) -> Kernel:
    """The kernel for one segment of one row's query head.

    *Shapes*: `q` f32 [T, H, Dh]; `k_pages`, `v_pages` f16 [pages, Hkv, 64, Dh]; `table` u32
    [T, table_width], the page of each tile; `lengths` u32 [T], positions seen before the
    window is applied, at least 1; the segments as in `Segments`. *Units*: `window` in
    positions, 2^32 - 1 for none. *Grid*: (S, H, T), S the most segments of a row.
    """

    def body(k: Builder) -> None:
        q = k.buffer("q", F32)
        k_pages = k.buffer("k_pages", Type.U16)
        v_pages = k.buffer("v_pages", Type.U16)
        table = k.buffer("table", U32)
        lengths = k.buffer("lengths", U32)
        out = Segments(k, heads)
        table_width = k.param("table_width", U32)
        window = k.param("window", U32)
        segments = k.param("segments", U32)
        scores = k.shared(F32, TILE)
        weights = k.shared(F32, TILE)

        thread = k.thread()
        segment, head, row = k.group(0), k.group(1), k.group(2)
        view = View(k, lengths, row, window)
        query = (row * heads.n_heads + head) * heads.head_dim
        channels = channels_of(thread, heads)

        with k.if_(segment < view.segments):
            start = (view.first_segment + segment) * SEGMENT
            first = k.maximum(start, view.first)
            end = k.minimum(start + SEGMENT, view.length)
            m = k.variable(k.const(F32, NO_SCORE))
            total = k.variable(k.const(F32, 0.0))
            acc = [k.variable(k.const(F32, 0.0)) for _ in channels]

            with k.loop(first // TILE, (end + (TILE - 1)) // TILE) as tile:
                page = page_start(heads, table[row * table_width + tile], head)
                tile_start = tile * TILE
                low = k.maximum(tile_start, first) - tile_start
                high = k.minimum(tile_start + TILE, end) - tile_start
                visible = (thread >= low) & (thread < high)

                s = score(k, heads, q, query, k_pages, page + thread * heads.head_dim)
                scores[thread] = k.select(visible, s, k.const(F32, NO_SCORE))
                k.barrier()
                fold(k, scores, [k.const(U32, 0)], thread, TILE, k.maximum)
                m_new = k.maximum(m.value, scores[0])
                decay = math.exp_nonpositive(MathWords(k), m.value - m_new)
                e = math.exp_nonpositive(MathWords(k), s - m_new)
                weights[thread] = k.select(visible, e, k.const(F32, 0.0))
                k.barrier()

                m.value = m_new
                total.value = total.value * decay + chain_sum(k, weights)
                for a in acc:
                    a.value = a.value * decay
                add_values(k, heads, weights, v_pages, page, (low, high), channels, acc)

            number = out.number(row, head, segment, segments)
            with k.if_(thread.equals(0)):
                out.m[number] = m.value
                out.total[number] = total.value
            store_channels(k, heads, out.acc, number * heads.head_dim, channels, acc)

    return Kernel(f"attention_segments_{heads.head_dim}", TILE, body)


def channels_of(thread: Value, heads: Heads) -> list[Value]:
    """The channels a thread sums: every 64th; the last ones may lie past the head."""
    return [thread + c for c in range(0, heads.head_dim, TILE)]


def page_start(heads: Heads, page: Value, head: Value) -> Value:
    """Where a page's keys (or values) for this query head begin."""
    kv_head = head // (heads.n_heads // heads.n_kv_heads)
    return (page * heads.n_kv_heads + kv_head) * (TILE * heads.head_dim)


def score(k: Builder, heads: Heads, q: Array, query: Value, keys: Array, key: Value) -> Value:
    """Scaled product of the query and one key: 4 chains over the head's channels."""
    chains = [k.variable(k.const(F32, 0.0)) for _ in range(SCORE_CHAINS)]
    with k.loop(0, heads.head_dim, SCORE_CHAINS) as channel:
        for c, chain in enumerate(chains):
            widened = k.half_to_float(keys[key + channel + c])
            chain.value = chain.value + q[query + channel + c] * widened
    s = tree([chain.value for chain in chains]) * heads.scale
    if heads.softcap is None:
        return s
    return math.softcap(MathWords(k), s, heads.softcap, 1 / heads.softcap)


def tree(chains: Sequence[Value]) -> Value:
    """Chains added pairwise in halves."""
    while len(chains) > 1:
        half = len(chains) // 2
        chains = [a + b for a, b in zip(chains[:half], chains[half:], strict=True)]
    return chains[0]


def chain_sum(k: Builder, weights: Array) -> Value:
    """Sum of a tile's exponentials in 8 chains; every thread makes it, which costs no barrier."""
    chains = [k.const(F32, 0.0)] * SUM_CHAINS
    for position in range(TILE):
        chain = position % SUM_CHAINS
        chains[chain] = chains[chain] + weights[position]
    return tree(chains)


def add_values(
    k: Builder,
    heads: Heads,
    weights: Array,
    v_pages: Array,
    page: Value,
    visible: tuple[Value, Value],
    channels: Sequence[Value],
    acc: Sequence[Variable],
) -> None:
    """Add the visible positions of a tile, ascending, to each channel."""
    with k.loop(*visible) as position:
        weight = weights[position]
        row = page + position * heads.head_dim
        for channel, a in zip(channels, acc, strict=True):
            inside = k.minimum(channel, heads.head_dim - 1)
            a.value = a.value + weight * k.half_to_float(v_pages[row + inside])


def store_channels(
    k: Builder,
    heads: Heads,
    array: Array,
    first: Value,
    channels: Sequence[Value],
    values: Sequence[Variable],
) -> None:
    """Write the channels that lie in the head."""
    for channel, value in zip(channels, values, strict=True):
        with k.if_(channel < heads.head_dim):
            array[first + channel] = value.value


@cache
def attention_merge(heads: Heads) -> Kernel:
    """The kernel that joins the segments of one row's query head.

    *Shapes*: the segments as in `Segments`; `lengths` u32 [T]; `y` f32 [T, H, Dh].
    *Grid*: (H, T, 1).
    """

    def body(k: Builder) -> None:
        parts = Segments(k, heads)
        lengths = k.buffer("lengths", U32)
        y = k.buffer("y", F32)
        window = k.param("window", U32)
        segments = k.param("segments", U32)

        head, row = k.group(0), k.group(1)
        view = View(k, lengths, row, window)
        channels = channels_of(k.thread(), heads)
        first = parts.number(row, head, k.const(U32, 0), segments)

        def channel_of(number: Value, channel: Value) -> Value:
            return parts.acc[number * heads.head_dim + k.minimum(channel, heads.head_dim - 1)]

        m = k.variable(parts.m[first])
        total = k.variable(parts.total[first])
        acc = [k.variable(channel_of(first, c)) for c in channels]
        with k.loop(1, view.segments) as segment:
            number = first + segment
            m_new = k.maximum(m.value, parts.m[number])
            old = math.exp_nonpositive(MathWords(k), m.value - m_new)
            new = math.exp_nonpositive(MathWords(k), parts.m[number] - m_new)
            m.value = m_new
            total.value = total.value * old + parts.total[number] * new
            for channel, a in zip(channels, acc, strict=True):
                a.value = a.value * old + channel_of(number, channel) * new
        inverse = math.recip(MathWords(k), total.value)
        for a in acc:
            a.value = a.value * inverse
        store_channels(k, heads, y, (row * heads.n_heads + head) * heads.head_dim, channels, acc)

    return Kernel(f"attention_merge_{heads.head_dim}", TILE, body)
