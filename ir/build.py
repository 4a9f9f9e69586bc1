"""The vocabulary in which families are written: one method a word, names by scope.

A builder gives each value one node (asked again for the same value it returns the same
node under its first name), takes weights from a file by name and checks their shapes, and
at the end tells which tensors of the file nobody asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite

from kinetic.errors import InternalError, ModelFileError, UnsupportedError
from kinetic.ir.gguf import GGUFFile, display_path, printable
from kinetic.ir.graph import Graph, Meta, Node
from kinetic.ir.ops.spec import Attr
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import FloatFormat
from kinetic.ir.quant.decode import as_blocks, dequantize
from kinetic.ir.types import TensorType, WeightType, shape_text


class Builder:
    """Builds one graph; `file` is where its weights come from (None in tests of ops alone)."""

    def __init__(self, file: GGUFFile | None = None) -> None:
        self.file = file
        self._scope: tuple[str, ...] = ()
        self._by_value: dict[tuple[object, ...], Node] = {}
        self._names: set[str] = set()
        self._taken: dict[str, list[tuple[int, int]]] = {}
        self._axis: dict[str, int] = {}
        self._divisors: set[str] = set()

    # ---- names ---------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside get `name.` in front."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield
        finally:
            self._scope = outer

    def full(self, name: str) -> str:
        """`name` with the scope in front."""
        return ".".join((*self._scope, name))

    def _unique(self, name: str) -> str:
        found, n = name, 1
        while found in self._names:
            n += 1
            found = f"{name}.{n}"
        self._names.add(found)
        return found

    def op(self, op: str, *inputs: Node | None, name: str = "", **attrs: Attr) -> Node:
        """A node of any op, named `scope.name` (the op's name where none is given).

        Raises: RuleError where the inputs or attributes break the op's rule.
        """
        return self._node(op, inputs, attrs, self.full(name or op))

    def _node(
        self, op: str, inputs: tuple[Node | None, ...], attrs: Mapping[str, Attr], name: str
    ) -> Node:
        draft = Node.make(op, inputs, attrs, name)
        key = draft.key()
        if key not in self._by_value:
            self._by_value[key] = draft.renamed(self._unique(name))
        return self._by_value[key]

    # ---- weights -------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the file holds this tensor (named within the scope)."""
        return self.file is not None and self.full(name) in self.file.tensors

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        rows: tuple[int, int] | None = None,
        part: tuple[int, int] | None = None,
        label: str = "",
        plain: bool = False,
    ) -> Node:
        """A tensor of the file, which must be there and have this shape.

        `rows=(start, count)` takes a range of its first axis, under the name `label`; `part` one
        of the second of three, of every matrix.

        Raises: ModelFileError if it is missing or has another shape; UnsupportedError if it
        is stored in a format that Kinetic does not know, or a vector (the weight of a norm, a
        bias) or a `plain` matrix in another one than plain floats.
        """
        if self.file is None:
            raise InternalError(f"weight {name}: this builder has no file")
        full, where = self.full(name), display_path(self.file.path)
        info = self.file.tensors.get(full)
        if info is None:
            raise ModelFileError(
                f"{where}: tensor {full} is missing; expected one of shape {shape_text(shape)}, "
                "convert the model again"
            )
        if info.shape != shape:
            raise ModelFileError(
                f"{where}: tensor {full} has shape {shape_text(info.shape)}, but the metadata "
                f"asks for {shape_text(shape)}; convert the model again"
            )
        if info.type_name not in FORMATS:
            known = ", ".join(FORMATS)
            raise UnsupportedError(
                f"{where}: tensor {full} is stored as {info.type_name}, which is not supported "
                f"yet; quantize the model to one of {known}"
            )
        if (plain or len(shape) == 1) and not isinstance(FORMATS[info.type_name], FloatFormat):
            what = "a vector" if len(shape) == 1 else "this matrix"
            raise UnsupportedError(
                f"{where}: tensor {full} is stored as {info.type_name}, but {what} must be "
                "F32, F16 or BF16; quantize the model again, its matrices alone"
            )
        self._taken.setdefault(full, []).append(part or rows or (0, shape[0]))
        self._axis[full] = shape[0] if part is None else shape[1]
        return self.declare(name, info.type_name, shape, rows=rows, part=part, label=label)

    def declare(
        self,
        name: str,
        format: str,
        shape: tuple[int, ...],
        *,
        rows: tuple[int, int] | None = None,
        part: tuple[int, int] | None = None,
        label: str = "",
    ) -> Node:
        """A weight that no file is asked for (`weight` without its checks)."""
        attrs: dict[str, Attr] = {"name": self.full(name), "format": format, "shape": shape}
        attrs |= {"rows": rows, "part": part}
        return self._node("weight", (), attrs, self.full(label or name))

    def maybe_weight(
        self, name: str, shape: tuple[int, ...], *, plain: bool = False
    ) -> Node | None:
        """The tensor if the file has it, then checked like any other.

        Raises: ModelFileError, UnsupportedError.
        """
        return self.weight(name, shape, plain=plain) if self.has(name) else None

    def skip(self, name: str) -> None:
        """Pass over a tensor that the model, by its definition, does not read."""
        info = self.file.tensors.get(self.full(name)) if self.file else None
        if info is not None:
            self._taken.setdefault(self.full(name), []).append((0, info.shape[0]))

    def scalar(self, name: str) -> float:
        """The value of a tensor of one number, which becomes a constant of the graph.

        Raises: ModelFileError where it is missing, of another shape or not finite;
        UnsupportedError where it is not plain floats.
        """
        (value,) = self._values(self.weight(name, (1,)))
        if not isfinite(value):
            raise self._wrong_value(self.full(name), value, "a finite number")
        return value

    def _values(self, node: Node) -> list[float]:
        """A vector of the file."""
        assert self.file is not None and isinstance(node.type, WeightType)
        fmt, raw = FORMATS[node.type.format_name], self.file.data(node.get("name", str))
        found: list[float] = dequantize(fmt, as_blocks(fmt, raw)).reshape(-1).tolist()
        return found

    def _wrong_value(self, name: str, value: float, expected: str) -> ModelFileError:
        where = display_path(self.file.path) if self.file else "no file"
        return ModelFileError(
            f"{where}: tensor {name} holds {value}, expected {expected}; convert the model again"
        )

    def done(self) -> None:
        """Check that every tensor of the file was used, all of its rows.

        Raises: UnsupportedError naming those that were not: to ignore a weight would be to
        run another model than the file describes.
        """
        if self.file is None:
            return
        left = []
        for name, info in self.file.tensors.items():
            end = 0
            for start, count in sorted(self._taken.get(name, [])):
                end = max(end, start + count) if start <= end else end
            if end < self._axis.get(name, info.shape[0] if info.shape else 1):
                left.append(printable(name))
        if left:
            shown = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
            raise UnsupportedError(
                f"{display_path(self.file.path)}: this {printable(self.file.architecture)} model "
                f"has tensors that Kinetic does not know how to use: {shown}; "
                "it needs a newer version or a variant that is not supported yet"
            )

    # ---- the vocabulary ------------------------------------------------------------------

    def tokens(self) -> Node:
        """The token ids of the rows: i32 `[T]`."""
        return self._node("tokens", (), {}, "tokens")

    def embed(self, tokens: Node, w: Node, name: str = "") -> Node:
        """Rows of the embedding: `[T, D]`."""
        return self.op("embed", tokens, w, name=name)

    def scale(self, x: Node, value: float, name: str = "") -> Node:
        """`x * value`."""
        return self.op("scale", x, value=value, name=name)

    def add(self, a: Node, b: Node, name: str = "") -> Node:
        """`a + b`."""
        return self.op("add", a, b, name=name)

    def mul(self, a: Node, b: Node, name: str = "") -> Node:
        """`a * b`."""
        return self.op("mul", a, b, name=name)

    def rms_norm(self, x: Node, w: Node | None, eps: float, name: str = "") -> Node:
        """Root-mean-square norm over the last axis."""
        return self.op("rms_norm", x, w, eps=eps, name=name)

    def linear(self, x: Node, w: Node, bias: Node | None = None, name: str = "") -> Node:
        """`[T, K]` by `[N, K]`: `[T, N]`."""
        return self.op("linear", x, w, bias, name=name)

    def split_heads(self, x: Node, heads: int, name: str = "") -> Node:
        """`[T, H * Dh]` as `[T, H, Dh]`."""
        return self.op("split_heads", x, heads=heads, name=name)

    def merge_heads(self, x: Node, name: str = "") -> Node:
        """`[T, H, Dh]` as `[T, H * Dh]`."""
        return self.op("merge_heads", x, name=name)

    def rope(self, x: Node, factors: Node | None, name: str = "", **attrs: Attr) -> Node:
        """Rotary positions; attributes as the op has them.

        Raises: ModelFileError where a frequency cannot be divided by its factor.
        """
        if factors is not None and self.file is not None and factors.name not in self._divisors:
            for value in self._values(factors):
                if not value > 0:
                    raise self._wrong_value(factors.get("name", str), value, "numbers above 0")
            self._divisors.add(factors.name)
        return self.op("rope", x, factors, name=name, **attrs)

    def attention(
        self,
        q: Node,
        k: Node,
        v: Node,
        *,
        scale: float,
        cache: str,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Node | None = None,
        name: str = "",
    ) -> Node:
        """`q [T, H, Dh]` over the cache and this step's `k`, `v [T, Hkv, Dh]`."""
        return self.op(
            "attention",
            q,
            k,
            v,
            sinks,
            name=name,
            scale=scale,
            window=window,
            softcap=softcap,
            cache=cache,
        )

    def silu(self, x: Node, name: str = "") -> Node:
        """`x * sigmoid(x)`."""
        return self.op("silu", x, name=name)

    def gelu_tanh(self, x: Node, name: str = "") -> Node:
        """GELU in its tanh form."""
        return self.op("gelu_tanh", x, name=name)

    def softcap(self, x: Node, cap: float, name: str = "") -> Node:
        """`cap * tanh(x / cap)`."""
        return self.op("softcap", x, cap=cap, name=name)

    def take_outputs(self, x: Node, name: str = "") -> Node:
        """The rows whose outputs are wanted: `[R, D]`."""
        return self.op("take_outputs", x, name=name)

    # ---- the result ----------------------------------------------------------------------

    def graph(self, name: str, meta: Meta, **outputs: Node) -> Graph:
        """The finished graph with these named outputs."""
        return Graph((self.tokens(),), outputs, name, meta)


def width(node: Node) -> int:
    """The last extent of a value, a number.

    Raises: InternalError where it is a letter or the value has no shape.
    """
    if isinstance(node.type, TensorType | WeightType) and isinstance(node.type.shape[-1], int):
        return node.type.shape[-1]
    raise InternalError(f"{node!r} has no known width")
