"""Jinja as chat templates expect it, with bounds on time, size and reach.

Templates come inside model files, so they are programs by strangers: the sandbox keeps them
from Python's internals, and the limits here keep them from running for ever or filling memory.

*Source*: Transformers' chat template environment: immutable sandbox, trim_blocks,
lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, plain-JSON `tojson`.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from kinetic.errors import TemplateError

MAX_CHARS = 64 << 20
MAX_SECONDS = 10.0
_MAX_INT_BITS = 1 << 14
_BIG_WIDTH = re.compile(r"\d{6,}|\*")


# What Python raises when a template does something that makes no sense.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


class TemplateFault(TemplateError):
    """A template did something that makes no sense for this conversation, unlike a refusal."""


class _Raised(Exception):
    """A template called raise_exception; the text is the template's own."""


class _Refused(Exception):
    """A template went over a limit."""


class GenerationTag(Extension):
    """`{% generation %}` marks a reply for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _AddLimits(NodeTransformer):
    """Counts every turn of a loop and every call of a macro, and bounds `~`."""

    def _tick(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _tick

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        attribute = nodes.EnvironmentAttribute("join_values")
        return nodes.Call(attribute, node.nodes, [], None, None).set_lineno(node.lineno)


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise _Refused(f"it makes a value of more than {MAX_CHARS} characters")


def _concat(parts: Iterable[str]) -> str:
    pieces = list(parts)
    _check_size(sum(map(len, pieces)))
    return "".join(pieces)


class _Call(threading.local):
    """What belongs to the rendering that a thread is doing."""

    deadline = float("inf")

    def __init__(self) -> None:
        self.unescape_json: Callable[[str], str] = str


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates; one may be used by several threads at once."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    concat = staticmethod(_concat)

    def __init__(self, now: Callable[[], datetime.datetime] = datetime.datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, GenerationTag],
            finalize=_or_empty,
        )
        self._call = _Call()
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: now().strftime(str(form))
        del self.globals["lipsum"]
        self.filters["tojson"] = self._tojson
        trim = self.filters["trim"]
        self.filters["trim"] = lambda value, *args: trim(_or_empty(value), *args)
        for name in ("urlize", "xmlattr"):
            del self.filters[name]
        for name in ("center", "indent", "wordwrap", "batch", "slice", "format", "replace"):
            self.filters[name] = self._bounded_filter(name, self.filters[name])

    # Compiling and running.

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        tree = _AddLimits().visit(tree)
        tree.set_environment(self)
        return tree

    def run(
        self,
        template: jinja2.Template,
        values: dict[str, object],
        unescape_json: Callable[[str], str] = str,
    ) -> str:
        """Render a template; `unescape_json` goes over JSON that was made ASCII.

        *Raises*: TemplateError with the template's own message if it raised one, else with
        what went wrong.
        """
        self._call.deadline = time.monotonic() + MAX_SECONDS
        self._call.unescape_json = unescape_json
        parts: list[str] = []
        total = 0
        try:
            context = template.new_context(values)
            for part in template.root_render_func(context):
                total += len(part)
                _check_size(total)
                parts.append(part)
        except _Raised as error:
            raise TemplateError(str(error)) from None
        except _Refused as error:
            raise TemplateError(f"the chat template was stopped: {error}") from None
        except RecursionError:
            raise TemplateError("the chat template was stopped: it calls itself too deep") from None
        except MemoryError:
            raise TemplateError("the chat template was stopped: it filled the memory") from None
        except _TEMPLATE_FAULTS as error:
            raise TemplateFault(f"the chat template failed: {_one_line(error)}") from None
        finally:
            self._call.deadline = float("inf")
        return "".join(parts)

    def tick(self) -> None:
        """Called by templates at every turn of a loop."""
        if time.monotonic() > self._call.deadline:
            raise _Refused(f"it ran for more than {MAX_SECONDS:g} seconds")

    # Bounded operations.

    def join_values(self, *values: object) -> str:
        """The `~` operator."""
        texts = [v if isinstance(v, str) else str(_or_empty(v)) for v in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        sized = (str, bytes, list, tuple)
        if operator == "+" and isinstance(left, str) and right is None:
            return left
        if operator == "+" and isinstance(right, str) and left is None:
            return right
        if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
            _check_size(len(left) + len(right))
        elif operator == "*":
            for a, b in ((left, right), (right, left)):
                if isinstance(a, sized) and isinstance(b, int):
                    _check_size(len(a) * b)
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        # The sandbox wraps str.format, and keeps the method itself in __wrapped__.
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, getattr(obj, "__name__", ""), args)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, (str, list)):
            _check_size(len(result))
        return result

    def _bounded_filter(self, name: str, plain: Callable[..., object]) -> Callable[..., object]:
        def bounded(*args: object, **kwargs: object) -> object:
            # Filters that want the environment or context get it first, so look at all.
            values = [*args, *kwargs.values()]
            texts = [v for v in values if isinstance(v, str)]
            for text in texts:
                if name == "replace" and len(texts) > 2:
                    _check_method(texts[0], "replace", texts[1:])
                if name == "format":
                    _check_format(text)
            numbers = [v for v in values if isinstance(v, int)]
            lines = 1 + (texts[0].count("\n") if texts and name == "indent" else 0)
            _check_size(max([0, *numbers]) * lines)
            return plain(*args, **kwargs)

        return functools.update_wrapper(bounded, plain)  # keeps Jinja's marks on the filter

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and (not isinstance(indent, int) or indent > 64):
            raise _Refused(f"it indents JSON by {indent!r}")
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=None if separators is None else (separators[0], separators[1]),
            sort_keys=sort_keys,
        )
        return self._call.unescape_json(text) if ensure_ascii else text


def _or_empty(value: object) -> object:
    """What is printed for a value. None prints nothing: absent content must not read `None`."""
    return "" if value is None else value


def _raise(message: object = "") -> str:
    raise _Raised(str(message))


def _check_bits(bits: int) -> None:
    if bits > _MAX_INT_BITS:
        raise _Refused("it computes with a number that is too large")


def _check_format(form: str) -> None:
    if _BIG_WIDTH.search(form):
        raise _Refused("it formats with a width that is too large")


def _check_method(owner: str, name: str, args: Sequence[object]) -> None:
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        widths = [a for a in args if isinstance(a, int)]
        times = 1 + owner.count("\t") if name == "expandtabs" else 1
        _check_size(max([0, *widths]) * times)
    elif name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        _check_size(len(owner) + owner.count(old) * len(new))
    elif name == "join" and args and isinstance(args[0], (list, tuple)):
        parts = args[0]
        _check_size(len(owner) * len(parts) + sum(len(p) for p in parts if isinstance(p, str)))
    elif name in ("format", "format_map"):
        _check_format(owner)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
