"""Row ops: norms, elementwise ops, gates, rotations, cache writes and wanted rows.

Section 6 of the arithmetic contract. Values are dense: f32 [T, W].
"""

from __future__ import annotations

from functools import cache

from kinetic.codegen.kernels.builder import F32, U32, Builder, Kernel, Type, Value
from kinetic.codegen.kernels.gpu.fold import fold
from kinetic.codegen.kernels.math_words import MathWords
from kinetic.ir import math

WORKGROUP = 64
NORM_CHAINS = 32
PAGE = 64
"""Positions of a page of the cache."""
ACTS = ("silu", "sigmoid", "gelu_tanh")


@cache
def rms_norm(weighted: bool, each: int = 1) -> Kernel:
    """The kernel for rows (or heads) of `width` values; a workgroup takes one.

    *Shapes*: `x`, `y` f32 [N, width]; `w` f32 [each, width], row `n % each` for row `n`.
    *Grid*: (N, 1, 1).
    """

    def body(k: Builder) -> None:
        x = k.buffer("x", F32)
        w = k.buffer("w", F32) if weighted else None
        y = k.buffer("y", F32)
        width, inverse = k.param("width", U32), k.param("inverse", F32)
        eps = k.param("eps", F32)
        partial = k.shared(F32, NORM_CHAINS)

        lane, row = k.thread(), k.group(0)
        start = row * width
        chain = k.variable(k.const(F32, 0.0))
        with k.loop(lane, width, NORM_CHAINS) as i:
            value = x[start + i]
            chain.value = chain.value + value * value
        partial[lane] = chain.value
        k.barrier()
        fold(k, partial, [k.const(U32, 0)], lane, NORM_CHAINS, lambda a, b: a + b)
        r = math.rsqrt(MathWords(k), partial[0] * inverse + eps)
        with k.loop(lane, width, NORM_CHAINS) as i:
            scaled = x[start + i] * r
            if w is not None:
                scaled = scaled * w[(row % each) * width + i if each > 1 else i]
            y[start + i] = scaled

    return Kernel(f"rms_norm{'_weighted' if weighted else ''}_{each}", NORM_CHAINS, body)


def _act(k: Builder, name: str, x: Value) -> Value:
    b = MathWords(k)
    if name == "silu":
        return math.silu(b, x)
    return math.sigmoid(b, x) if name == "sigmoid" else math.gelu_tanh(b, x)


def _place(k: Builder, count: Value) -> Value:
    """Index of this thread's value; those past the end repeat the last, with equal words."""
    return k.minimum(k.group(0) * WORKGROUP + k.thread(), count - 1)


@cache
def unary(op: str) -> Kernel:
    """An activation of each value. *Shapes*: `x`, `y` f32 [N]. *Grid*: (ceil(N / 64), 1, 1)."""

    def body(k: Builder) -> None:
        x, y = k.buffer("x", F32), k.buffer("y", F32)
        here = _place(k, k.param("count", U32))
        y[here] = _act(k, op, x[here])

    return Kernel(f"map_{op}", WORKGROUP, body)


@cache
def binary(op: str) -> Kernel:
    """`add`, `mul`, or the name of an activation for a gate's `act(a) * b`.

    *Shapes*: `a`, `b`, `y` f32 [N]. *Grid*: (ceil(N / 64), 1, 1).
    """

    def body(k: Builder) -> None:
        a, b, y = k.buffer("a", F32), k.buffer("b", F32), k.buffer("y", F32)
        here = _place(k, k.param("count", U32))
        left, right = a[here], b[here]
        if op == "add":
            y[here] = left + right
        else:
            y[here] = (left if op == "mul" else _act(k, op, left)) * right

    return Kernel(f"{'' if op in ('add', 'mul') else 'glu_'}{op}", WORKGROUP, body)


@cache
def scale(factor: float) -> Kernel:
    """Each value times a constant. *Shapes*: as `unary`."""

    def body(k: Builder) -> None:
        x, y = k.buffer("x", F32), k.buffer("y", F32)
        here = _place(k, k.param("count", U32))
        y[here] = x[here] * factor

    return Kernel("scale", WORKGROUP, body)


@cache
def softcap(cap: float) -> Kernel:
    """`cap * tanh(x / cap)` of each value. *Shapes*: as `unary`."""

    def body(k: Builder) -> None:
        x, y = k.buffer("x", F32), k.buffer("y", F32)
        here = _place(k, k.param("count", U32))
        y[here] = math.softcap(MathWords(k), x[here], cap, 1 / cap)

    return Kernel("softcap", WORKGROUP, body)


@cache
def rope(kind: str, rot: int, heads: int, width: int) -> Kernel:
    """Rotation of the heads of each row; pairs are `norm` (2i, 2i + 1) or `neox` (i, i + rot/2).

    *Shapes*: `x`, `y` f32 [T, heads, width]; `cos`, `sin` f32 [T, rot / 2], of the rows'
    positions. *Grid*: (ceil(heads * width / 64), T, 1).
    """
    pairs = rot // 2

    def body(k: Builder) -> None:
        x, y = k.buffer("x", F32), k.buffer("y", F32)
        cos, sin = k.buffer("cos", F32), k.buffer("sin", F32)
        row = k.group(1)
        here = _place(k, k.const(U32, heads * width))
        channel = here % width
        head = row * (heads * width) + (here - channel)
        turned = k.minimum(channel, rot - 1)
        if kind == "neox":
            pair = turned % pairs
            first, second, is_first = pair, pair + pairs, turned < pairs
        else:
            pair = turned // 2
            first, second, is_first = pair * 2, pair * 2 + 1, (turned % 2).equals(0)
        a, b = x[head + first], x[head + second]
        c, s = cos[row * pairs + pair], sin[row * pairs + pair]
        result = k.select(is_first, a * c - b * s, a * s + b * c)
        y[head + channel] = k.select(channel < rot, result, x[head + channel])

    return Kernel(f"rope_{kind}_{rot}_{heads}_{width}", WORKGROUP, body)


@cache
def write_pages(heads: int, width: int) -> Kernel:
    """Keys and values of the rows, rounded to f16, into the slots the rows write.

    *Shapes*: `keys`, `values` f32 [T, heads, width]; `slots` u32 [T], page * 64 + place;
    `k_pages`, `v_pages` f16 [pages, heads, 64, width]. *Grid*: (ceil(heads * width / 64), T, 1).
    """

    def body(k: Builder) -> None:
        keys, values = k.buffer("keys", F32), k.buffer("values", F32)
        slots = k.buffer("slots", U32)
        k_pages, v_pages = k.buffer("k_pages", Type.U16), k.buffer("v_pages", Type.U16)
        row = k.group(1)
        here = _place(k, k.const(U32, heads * width))
        channel, head = here % width, here // width
        slot = slots[row]
        to = (((slot // PAGE) * heads + head) * PAGE + slot % PAGE) * width + channel
        for source, pages in ((keys, k_pages), (values, v_pages)):
            value = source[row * (heads * width) + here]
            pages[to] = math.f32_to_f16_bits(MathWords(k), value).as_type(U32)

    return Kernel(f"write_pages_{heads}_{width}", WORKGROUP, body)


@cache
def temper(scale: float, every: int) -> Kernel:
    """Queries made larger by how many whole contexts lie before the row's position.

    *Shapes*: `x`, `y` f32 [T, width]; `lengths` u32 [T], positions plus one.
    *Grid*: (ceil(width / 64), T, 1).
    """

    def body(k: Builder) -> None:
        x, lengths, y = k.buffer("x", F32), k.buffer("lengths", U32), k.buffer("y", F32)
        width = k.param("width", U32)
        here, row = _place(k, width), k.group(1)
        contexts = ((lengths[row] - 1) // every).to_float()
        place = row * width + here
        y[place] = math.temper(MathWords(k), x[place], contexts, k.const(F32, scale))

    return Kernel("temper", WORKGROUP, body)


@cache
def take_rows() -> Kernel:
    """Rows by number. *Shapes*: `x` f32 [T, width]; `rows` u32 [R]; `y` f32 [R, width].
    *Grid*: (ceil(width / 64), R, 1)."""

    def body(k: Builder) -> None:
        x, rows, y = k.buffer("x", F32), k.buffer("rows", U32), k.buffer("y", F32)
        width = k.param("width", U32)
        here, row = _place(k, width), k.group(1)
        y[row * width + here] = x[rows[row] * width + here]

    return Kernel("take_rows", WORKGROUP, body)
