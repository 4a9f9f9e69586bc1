"""What an op is: one Python function that is its signature and its type rule.

    @op("model")
    def rms_norm(x: Type, w: Type | None = None, *, eps: float) -> Type:
        '''One sentence for the docs.'''
        return tensor(x, "x")              # the type rule

    @rms_norm.meaning
    def _(run: Run, x: Array, w: Weight | None, *, eps: float) -> Array:
        ...                                # the numpy meaning

Positional parameters are the op's inputs (one with a default may be left out), keyword
parameters its attributes, in the order in which they print. Nothing else in the project
says what an op is called, takes or means.
"""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kinetic.errors import InternalError
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import FloatFormat, Format
from kinetic.ir.types import DType, QuantType, RoutingType, TensorType, Type, WeightType

Attr = None | bool | int | float | str | tuple["Attr", ...]
"""What an attribute may be: it must print and parse back to itself."""

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


class RuleError(InternalError):
    """A node breaks its op's rule; says what was expected and what was there."""

    def __init__(self, where: str, expected: str, got: object) -> None:
        super().__init__(f"{where}: expected {expected}, got {got}")
        self.where, self.expected, self.got = where, expected, str(got)


# ---- values at run time, as the numpy meanings see them --------------------------------


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor of the file, undecoded. `raw` is uint8 `[rows, bytes of a row]`, the last
    axis of `shape` being a row; `memo` keeps what a meaning decoded from it."""

    format: Format
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]
    memo: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Rows as int8 blocks: `q` is int8 `[T, K]`, `d` is f32 `[T, K / block]`; rows of chosen
    experts have an axis more, as their type does."""

    block: int
    q: npt.NDArray[np.int8]
    d: F32


@dataclass(frozen=True, eq=False)
class Routing:
    """The chosen experts of each row, ascending: `experts` is int `[T, used]`; `share` is the
    f32 weight of each."""

    experts: npt.NDArray[np.intp]
    share: F32


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one step. `wanted` marks those whose outputs the caller reads; `hidden` are the
    vectors `[T, D]` that come with the rows of a drafting block."""

    tokens: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    wanted: npt.NDArray[np.bool_]
    hidden: F32 | None = None


class Run(Protocol):
    """What a meaning may ask of the step that it is part of."""

    @property
    def rows(self) -> Rows:
        """The rows of this step."""

    def weight(self, name: str) -> Weight:
        """The tensor of that name in the model file."""

    def write(self, cache: str, k: F32, v: F32) -> None:
        """Put each row's keys and values at its sequence and position."""

    def read(self, cache: str, sequence: int) -> tuple[F32, F32]:
        """Keys and values `[positions, Hkv, Dh]` of a sequence, widened to f32."""

    def scan(self, cache: str, shape: tuple[int, int, int], row: Callable[[F32, int], F32]) -> None:
        """Walk the rows, each after the one before it on its path: `row(state, i)` is the state
        after row `i`. The state before a path's first row is zeros of that shape."""


# ---- the op itself -----------------------------------------------------------------------


@dataclass(frozen=True)
class Param:
    """One input or attribute. `kinds` are the Python types an attribute may have."""

    name: str
    kinds: tuple[type, ...] = ()
    required: bool = True
    default: Attr = None


@dataclass(eq=False)
class OpSpec:
    """One op: name, level, one sentence, inputs, attributes, type rule, numpy meaning.

    `writes` says that the op writes the cache which its attribute `cache` names.
    """

    name: str
    level: str
    doc: str
    inputs: tuple[Param, ...]
    attrs: tuple[Param, ...]
    rule: Callable[..., Type]
    writes: bool = False
    run: Callable[..., Any] | None = None

    def meaning(self, fn: Callable[..., Any]) -> OpSpec:
        """Decorator: `fn(run, *inputs, **attributes)` is what the op computes."""
        self.run = fn
        return self

    def bind(self, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
        """All attributes in signature order, checked and with defaults filled in.

        Raises: RuleError for an unknown, missing or wrongly typed attribute.
        """
        known = {p.name for p in self.attrs}
        for name in attrs:
            if name not in known:
                raise RuleError(self.name, f"attributes {sorted(known)}", repr(name))
        bound: dict[str, Attr] = {}
        for p in self.attrs:
            if p.name in attrs:
                bound[p.name] = self._coerce(p, attrs[p.name])
            elif p.required:
                raise RuleError(self.name, f"an attribute {p.name!r}", "none")
            else:
                bound[p.name] = p.default
        return bound

    def _coerce(self, p: Param, value: Attr) -> Attr:
        if float in p.kinds and type(value) is int:
            value = float(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise RuleError(self.name, f"a finite {p.name}", value)
        if type(value) not in p.kinds:
            names = " or ".join(k.__name__ for k in p.kinds)
            raise RuleError(self.name, f"{p.name} to be {names}", repr(value))
        return value

    def infer(self, inputs: tuple[Type | None, ...], attrs: Mapping[str, Attr]) -> Type:
        """The result's type. `inputs` has one entry a parameter, None where left out.

        Raises: RuleError.
        """
        if len(inputs) != len(self.inputs):
            raise RuleError(self.name, f"{len(self.inputs)} inputs", len(inputs))
        for p, value in zip(self.inputs, inputs, strict=True):
            if value is None and p.required:
                raise RuleError(self.name, f"an input {p.name!r}", "none")
        return self.rule(*inputs, **attrs)

    @property
    def signature(self) -> str:
        """`rms_norm(x, w?; eps)`."""
        left = ", ".join(p.name + ("" if p.required else "?") for p in self.inputs)
        right = ", ".join(
            p.name + ("" if p.required else f"={attr_text(p.default)}") for p in self.attrs
        )
        return f"{self.name}({left}{'; ' if left and right else ''}{right})"


OPS: dict[str, OpSpec] = {}
"""Every op by name, in the order of declaration."""

LEVELS = ("model", "lowered")
"""`model`: what families write. `lowered`: what passes put in its place."""


def op(level: str, *, writes: bool = False) -> Callable[[Callable[..., Type]], OpSpec]:
    """Decorator: declare an op from its type rule (see the top of this file)."""
    if level not in LEVELS:
        raise InternalError(f"op level {level!r} is not one of {LEVELS}")

    def declare(rule: Callable[..., Type]) -> OpSpec:
        name = rule.__name__
        hints = typing.get_type_hints(rule)
        inputs, attrs = [], []
        for p in inspect.signature(rule).parameters.values():
            required = p.default is inspect.Parameter.empty
            default = None if required else p.default
            if p.kind is inspect.Parameter.KEYWORD_ONLY:
                attrs.append(Param(p.name, _kinds(hints[p.name]), required, default))
            else:
                inputs.append(Param(p.name, (), required))
        if name in OPS:
            raise InternalError(f"op {name!r} is declared twice")
        doc = inspect.getdoc(rule) or ""
        OPS[name] = OpSpec(name, level, doc, tuple(inputs), tuple(attrs), rule, writes)
        return OPS[name]

    return declare


def _kinds(hint: Any) -> tuple[type, ...]:
    """The plain types of an annotation: `int | None` is `(int, NoneType)`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(kind for arg in typing.get_args(hint) for kind in _kinds(arg))
    return (typing.get_origin(hint) or hint,)


def attr_text(value: Attr) -> str:
    """An attribute as it prints: floats so that they read back to the same bits."""
    if isinstance(value, tuple):
        return "(" + ", ".join(attr_text(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, str):
        return json.dumps(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value)


# ---- words for type rules ----------------------------------------------------------------


def tensor(x: Type | None, where: str, rank: int | None = None) -> TensorType:
    """`x` as an f32 tensor (of `rank` axes).

    Raises: RuleError.
    """
    if not isinstance(x, TensorType) or x.dtype is not DType.f32:
        raise RuleError(where, "an f32 tensor", x)
    if rank is not None and len(x.shape) != rank:
        raise RuleError(where, f"{rank} axes", x)
    return x


def weight_of(w: Type | None, where: str, rank: int) -> WeightType:
    """`w` as a weight of `rank` axes.

    Raises: RuleError.
    """
    if not isinstance(w, WeightType) or len(w.shape) != rank:
        raise RuleError(where, f"a weight of {rank} axes", w)
    return w


def routing_of(x: Type | None, where: str) -> RoutingType:
    """`x` as a routing of rows to experts.

    Raises: RuleError.
    """
    if not isinstance(x, RoutingType):
        raise RuleError(where, "a routing", x)
    return x


def vector(w: Type | None, where: str, size: int) -> WeightType:
    """`w` as a vector of plain floats of that size.

    Raises: RuleError.
    """
    found = weight_of(w, where, 1)
    if found.format_name not in FLOAT_FORMATS or found.shape != (size,):
        raise RuleError(where, f"f32[{size}]", w)
    return found


def same(got: object, expected: object, where: str) -> None:
    """Check an equality of shapes, extents or types.

    Raises: RuleError.
    """
    if got != expected:
        raise RuleError(where, str(expected), got)


def extent(x: TensorType | QuantType, where: str) -> int:
    """The last extent, which must be known.

    Raises: RuleError.
    """
    if not x.shape or not isinstance(x.shape[-1], int):
        raise RuleError(where, "a known last extent", x)
    return x.shape[-1]


def activations(x: Type | None, where: str) -> TensorType | QuantType:
    """`x` as f32 rows or quantized rows.

    Raises: RuleError.
    """
    if isinstance(x, QuantType):
        return x
    return tensor(x, where)


FLOAT_FORMATS = tuple(f.name for f in FORMATS.values() if isinstance(f, FloatFormat))
"""Formats that hold plain floats, whose products take f32 activations."""


def format_of(w: WeightType) -> Format:
    """The declaration of a weight's format.

    Raises: RuleError.
    """
    found = FORMATS.get(w.format_name)
    if found is None:
        raise RuleError("format", f"one of {', '.join(FORMATS)}", w.format_name)
    return found
