"""Hyper-parameters of a file: each key is read by name, and one that nobody read is refused.

A key that Kinetic does not know may change what the model computes, so a file that holds
one does not load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.ir.gguf import GGUFFile, display_path, printable
from kinetic.ir.graph import CacheSpec, Meta
from kinetic.ir.ops.recurrent import MOST_TAPS
from kinetic.ir.ops.spec import Attr

HARMLESS = frozenset(
    {
        "vocab_size",  # the embedding's shape says it
        "rope.scaling.finetuned",  # how the weights came about
        "tensor_data_layout",  # the converter's note; q and k rows are stored as it says
    }
)
"""Keys that do not change what is computed."""

RMS_EPS = "attention.layer_norm_rms_epsilon"
POOLINGS = {1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""What `pooling_type` means; 0 is none."""

MOST = (1 << 31) - 1
"""The largest count that a file can mean: positions and ids are 32-bit."""
MOST_PARTS = 1 << 16
"""Of heads and of experts."""
MOST_WIDE = 1 << 24
"""Values of a row; every matrix of such a model would be larger than any file."""


class Hyper:
    """The `ARCH.*` keys of a file."""

    def __init__(self, file: GGUFFile, encoder: bool = False) -> None:
        self.file, self.arch, self.encoder = file, file.architecture, encoder
        self._read: set[str] = set()

    def _key(self, key: str) -> str:
        self._read.add(key)
        full = f"{self.arch}.{key}"
        if isinstance(self.file.metadata.get(full), np.ndarray):
            raise UnsupportedError(
                f"{display_path(self.file.path)}: {full} differs from layer to layer, which is "
                "not supported yet"
            )
        return full

    def has(self, key: str) -> bool:
        """Whether the file sets this key."""
        return f"{self.arch}.{key}" in self.file.metadata

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST
    ) -> int:
        """A count from `least` to `most`.

        Raises: ModelFileError where it is missing without a default, or out of range.
        """
        full = self._key(key)
        value = self.file.get_int(full) if default is None else self.file.get_int(full, default)
        if not least <= value <= most:
            wanted = f"of at least {least}" if most == MOST else f"from {least} to {most}"
            raise self._wrong(full, value, f"a {'32-bit ' if most == MOST else ''}count {wanted}")
        return value

    def layers(self) -> int:
        """The number of layers, of which each has a tensor at least.

        Without that bound a damaged count costs minutes before a missing tensor is noticed.

        Raises: ModelFileError.
        """
        found, tensors = self.count("block_count"), len(self.file.tensors)
        if found > tensors:
            raise self.wrong("block_count", f"no more layers than the file's {tensors} tensors")
        return found

    def sliding_layers(self, key: str, default: int, n_layers: int) -> list[bool]:
        """Which layers slide: an array says it one by one, a number `n` that each `n`-th is full.

        Raises: ModelFileError where an array is shorter than the model.
        """
        full = f"{self.arch}.{key}"
        self._read.add(key)
        found = self.file.metadata.get(full, default)
        if isinstance(found, np.ndarray):
            if len(found) < n_layers or found.dtype.kind not in "biu":
                raise self.wrong(key, f"{n_layers} entries that say yes or no")
            return [bool(flag) for flag in found[:n_layers]]
        period = self.count(key, default)
        return [i % period != period - 1 for i in range(n_layers)]

    def each_layer(self, key: str, n_layers: int, *, most: int = MOST) -> list[int]:
        """A count from 0 for each layer: an array, or one number for all.

        Raises: ModelFileError where an array is shorter than the model, or a count out of range.
        """
        self._read.add(key)
        found = self.file.metadata.get(f"{self.arch}.{key}")
        if not isinstance(found, np.ndarray):
            return [self.count(key, least=0, most=most)] * n_layers
        if len(found) < n_layers or found.dtype.kind not in "iu":
            raise self.wrong(key, f"a count for each of {n_layers} layers")
        counts = [int(n) for n in found[:n_layers]]
        if min(counts) < 0 or max(counts) > most:
            raise self.wrong(key, f"counts from 0 to {most}")
        return counts

    def counts(self, key: str) -> list[int]:
        """The counts of a list; none where the file has no such key.

        Raises: ModelFileError where they are not counts.
        """
        self._read.add(key)
        found = self.file.metadata.get(f"{self.arch}.{key}")
        if found is None:
            return []
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.min() < 0:
            raise self.wrong(key, "a list of counts")
        return [int(n) for n in found]

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, as the shortest decimal that gives the same binary32.

        Raises: ModelFileError where it is missing without a default, or not finite.
        """
        full = self._key(key)
        value = self.file.get_float(full) if default is None else self.file.get_float(full, default)
        with np.errstate(over="ignore"):
            rounded = np.float32(value)
        if not np.isfinite(rounded):
            raise self._wrong(full, value, "a finite number")
        return float(str(rounded))

    def positive(self, key: str, default: float | None = None, *, above: float = 0.0) -> float:
        """A number above 0 (or `above`) whose reciprocal is finite too; see `number`.

        Raises: ModelFileError where it is missing without a default, or out of range.
        """
        value = self.number(key, default)
        if not (value > above and 2.0**-126 <= value <= 2.0**126):
            expected = f"a number above {above:g}" if above else "a positive number"
            raise self.wrong(key, expected)
        return value

    def multiplier(self, key: str) -> float | None:
        """A positive number, or None where it is 0 or missing: nothing is multiplied.

        Raises: ModelFileError.
        """
        return self.positive(key) if self.has(key) and self.number(key) != 0 else None

    def rope_base(self, key: str, default: float) -> float:
        """A base of rotary positions: above 1, for the frequencies are to fall.

        Raises: ModelFileError.
        """
        return self.positive(key, default, above=1.0)

    def flag(self, key: str, default: bool) -> bool:
        """Yes or no."""
        return self.file.get_bool(self._key(key), default)

    def word(self, key: str, default: str) -> str:
        """A word."""
        return self.file.get_str(self._key(key), default)

    def pooling(self) -> str | None:
        """How a text's rows become one; None in a model that generates. An encoder whose file
        does not say takes their mean.

        Raises: ModelFileError; UnsupportedError for an encoder without.
        """
        key = "pooling_type"
        found = self.count(key, 0, least=0)
        if found == 0 and self.encoder:
            self.refuse(key, "a vector for each token instead of each text")
            return "mean"
        if found and found not in POOLINGS:
            raise self.wrong(key, f"a number from 0 to {max(POOLINGS)}")
        return POOLINGS.get(found)

    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's scores, where the file has them."""
        key = "classifier.output_labels"
        self._read.add(key)
        found = self.file.get_strings(f"{self.arch}.{key}", None)
        return tuple(found or ())

    def wrong(self, key: str, expected: str) -> ModelFileError:
        """The error for a key whose value cannot be right."""
        full = f"{self.arch}.{key}"
        return self._wrong(full, self.file.metadata.get(full, "missing"), expected)

    def _wrong(self, full: str, value: object, expected: str) -> ModelFileError:
        return ModelFileError(
            f"{display_path(self.file.path)}: {full} is {printable(str(value))}, expected "
            f"{expected}; convert the model again"
        )

    def refuse(self, key: str, why: str) -> None:
        """Fail in one sentence where the file sets this key.

        Raises: UnsupportedError.
        """
        if self.has(key):
            raise UnsupportedError(
                f"{display_path(self.file.path)}: {self.arch}.{key} is set: {why}, "
                "which is not supported yet"
            )

    def done(self) -> None:
        """Check that every key of the architecture was read.

        Raises: UnsupportedError naming those that were not.
        """
        prefix = f"{self.arch}."
        left = [
            printable(key)
            for key in self.file.metadata
            if key.startswith(prefix) and key.removeprefix(prefix) not in self._read | HARMLESS
        ]
        if left:
            raise UnsupportedError(
                f"{display_path(self.file.path)}: the setting {', '.join(left[:4])} is not "
                f"known for {printable(self.arch)} models; it may need a newer version of Kinetic"
            )


@dataclass(frozen=True)
class Rope:
    """Rotary positions, as the `rope` op takes them."""

    kind: str
    rot: int
    base: float
    scaling: str | None = None
    factor: float = 1.0
    n_ctx_orig: int = 0
    attn_factor: float = 1.0

    def attrs(self) -> dict[str, Attr]:
        """The op's attributes."""
        return dict(vars(self))

    @staticmethod
    def read(h: Hyper, kind: str, head_dim: int, n_ctx: int, longrope: bool = False) -> Rope:
        """From `rope.*`: base 10000 and all columns unless the file says otherwise. A family that
        knows `longrope` takes its factors from tensors."""
        rot = h.count("rope.dimension_count", head_dim)
        if rot % 2 or rot > head_dim:
            raise h.wrong("rope.dimension_count", f"an even number up to {head_dim}")
        base = h.rope_base("rope.freq_base", 10000.0)
        scaling = h.word("rope.scaling.type", "none")
        factor = h.number("rope.scaling.factor", 1.0)  # 0 where there is no scaling
        orig = h.count("rope.scaling.original_context_length", n_ctx)
        magnitude = h.positive("rope.scaling.attn_factor", 1.0)
        for key, usual in (("yarn_beta_fast", 32.0), ("yarn_beta_slow", 1.0)):
            if h.number(f"rope.scaling.{key}", usual) != usual:
                h.refuse(f"rope.scaling.{key}", f"a ramp of YaRN other than {usual:g}")
        if scaling == "none" or (longrope and scaling == "longrope"):
            return Rope(kind, rot, base, attn_factor=magnitude)
        factor = h.positive("rope.scaling.factor", 1.0)
        if scaling == "linear":
            return Rope(kind, rot, base, scaling, factor, attn_factor=magnitude)
        if scaling == "yarn":
            return Rope(kind, rot, base, scaling, factor, orig, magnitude)
        raise UnsupportedError(
            f"{display_path(h.file.path)}: rope scaling {printable(scaling)} is not supported yet"
        )


@dataclass(frozen=True)
class Experts:
    """A mixture in place of the feed-forward: `n_used` of `count` experts for each row, each
    `width` wide, and one of `shared` width (0: none) that every row meets."""

    count: int
    n_used: int
    width: int
    shared: int = 0
    router: str = "softmax"
    weight_scale: float = 1.0
    act: str = "silu"
    norm_weights: bool = True

    @staticmethod
    def read(h: Hyper, width: int) -> Experts:
        """From `expert_*`; `width` is that of the feed-forward, for files that give no other."""
        count = h.count("expert_count", most=MOST_PARTS)
        n_used = h.count("expert_used_count", 0, least=0)
        if not 1 <= n_used <= count:
            raise h.wrong("expert_used_count", f"between 1 and {count}")
        return Experts(
            count,
            n_used,
            h.count("expert_feed_forward_length", width, most=MOST_WIDE),
            h.count("expert_shared_feed_forward_length", 0, least=0, most=MOST_WIDE),
        )


def _feed_forward(h: Hyper) -> int:
    """The width of the feed-forward; a mixture may give its experts' alone."""
    if h.has("expert_feed_forward_length") and not h.has("feed_forward_length"):
        return h.count("expert_feed_forward_length", most=MOST_WIDE)
    return h.count("feed_forward_length", most=MOST_WIDE)


def experts_if_any(h: Hyper, width: int) -> Experts | None:
    """The mixture of a file that may have one; see `Experts.read`."""
    n_used = h.count("expert_used_count", 0, least=0)
    return Experts.read(h, width) if h.count("expert_count", 0, least=0) or n_used else None


@dataclass(frozen=True)
class SSM:
    """A state-space block: `taps` of its convolution, `heads` of `width` channels whose states
    have `state` rows, and `groups` of them that share their inputs."""

    taps: int
    heads: int
    width: int
    state: int
    groups: int

    @staticmethod
    def read(h: Hyper) -> SSM:
        """From `ssm.*`.

        Raises: ModelFileError.
        """
        taps = h.count("ssm.conv_kernel", least=2, most=MOST_TAPS)
        heads = h.count("ssm.time_step_rank", most=MOST_PARTS)
        inner = h.count("ssm.inner_size", most=MOST_WIDE)
        groups = h.count("ssm.group_count", most=MOST_PARTS)
        state = h.count("ssm.state_size", most=MOST_PARTS)
        if inner % heads:
            raise h.wrong("ssm.inner_size", f"a multiple of {heads} heads")
        if heads % groups:
            raise h.wrong("ssm.group_count", f"a divisor of {heads}")
        if state % 4:
            raise h.wrong("ssm.state_size", "a multiple of 4")
        return SSM(taps, heads, inner // heads, state, groups)

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.width


@dataclass(frozen=True)
class Config:
    """What every decoder here has. Letters: see `docs/arithmetic.md`."""

    h: Hyper
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_dim: int
    n_ctx: int
    n_vocab: int
    eps: float
    rope: Rope
    recurrent: tuple[bool, ...] = ()
    """Which layers have no attention, in families that may have such."""

    @staticmethod
    def read(
        file: GGUFFile,
        *,
        rope_kind: str,
        encoder: bool = False,
        eps_key: str = RMS_EPS,
        hybrid: bool = False,
        listed: bool = False,
        longrope: bool = False,
    ) -> Config:
        """From the file's metadata; `done` is left to the family, which may read more keys.

        In a `hybrid` the key/value heads are listed by layer, and one without any is recurrent.
        Where they and the feed-forward's widths may be `listed`, they are the first layer's here.
        """
        h = Hyper(file, encoder)
        n_layers, n_embd = h.layers(), h.count("embedding_length", most=MOST_WIDE)
        n_heads = h.count("attention.head_count", most=MOST_PARTS)
        recurrent: tuple[bool, ...] = ()
        if hybrid:
            by_layer = h.each_layer("attention.head_count_kv", n_layers, most=MOST_PARTS)
            recurrent = tuple(n == 0 for n in by_layer)
            n_kv_heads = max(1, *by_layer)
            if set(by_layer) - {0, n_kv_heads}:
                raise h.wrong("attention.head_count_kv", "one count in all layers with attention")
        elif listed:
            n_kv_heads = h.each_layer("attention.head_count_kv", n_layers, most=MOST_PARTS)[0]
        else:
            n_kv_heads = h.count("attention.head_count_kv", n_heads, most=MOST_PARTS)
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise h.wrong("attention.head_count_kv", f"a divisor of {n_heads}")
        if not h.has("attention.key_length") and n_embd % n_heads:
            raise h.wrong("attention.head_count", f"a divisor of {n_embd}")
        each = max(n_embd // n_heads, 1)
        head_dim = h.count("attention.key_length", each, most=MOST_WIDE)
        n_ctx = h.count("context_length")
        embedding = file.tensors.get("token_embd.weight")
        return Config(
            h=h,
            n_layers=n_layers,
            n_embd=n_embd,
            n_ff=h.each_layer("feed_forward_length", n_layers, most=MOST_WIDE)[0]
            if listed
            else _feed_forward(h),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            v_dim=h.count("attention.value_length", each, most=MOST_WIDE),
            n_ctx=n_ctx,
            n_vocab=embedding.shape[0] if embedding else 1,
            eps=h.positive(eps_key),
            rope=Rope.read(h, rope_kind, head_dim, n_ctx, longrope),
            recurrent=recurrent,
        )

    def cache(self, window: int | None = None) -> CacheSpec:
        """The keys and values that one layer keeps."""
        return CacheSpec("attention", self.n_kv_heads, self.head_dim, self.v_dim, window)

    def meta(self, caches: dict[str, CacheSpec]) -> Meta:
        """What the runtime must know."""
        return Meta(
            arch=self.h.arch,
            n_ctx_train=self.n_ctx,
            n_vocab=self.n_vocab,
            n_layers=self.n_layers,
            n_embd=self.n_embd,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            caches=caches,
            pooling=self.h.pooling(),
            labels=self.h.labels(),
        )
