"""Every op is documented, checked and means what the contract says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import naive
from support.tiny_models import random_weight

from kinetic.ir.graph import Node
from kinetic.ir.ops import OPS, RuleError, doc_table
from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.ops.spec import Quantized, Weight, attr_text
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat

BLOCK_FORMATS = [name for name, fmt in FORMATS.items() if isinstance(fmt, BlockFormat)]
TOKENS = Node.make("tokens")


def weight_node(shape, fmt="F32"):
    return Node.make("weight", (), {"name": "w", "format": fmt, "shape": shape})


def rows_node(width):
    return Node.make("embed", (TOKENS, weight_node((8, width))))


def make_weight(fmt: str, shape: tuple[int, ...], seed: int = 0) -> Weight:
    rng = np.random.default_rng(seed)
    return Weight(FORMATS[fmt], shape, random_weight(FORMATS[fmt], shape, rng, 0.1))


def words(x: np.ndarray) -> list[int]:
    """Bits, all NaNs alike, both zeros apart."""
    x = np.where(np.isnan(x), np.float32(np.nan), x)
    return np.ascontiguousarray(x, np.float32).view(np.uint32).ravel().tolist()


# ---- declarations ------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_each_op_has_one_sentence_and_a_meaning(name):
    spec = OPS[name]
    assert spec.doc and spec.doc[0] in "`" + spec.doc[0].upper() and spec.doc.endswith((".", "`"))
    assert spec.run is not None
    assert spec.name == name and name in doc_table()


def test_the_docs_page_is_fresh(request):
    page = request.config.rootpath / "docs" / "ops.md"
    assert page.read_text(encoding="utf-8") == doc_table()


def test_signatures_come_from_the_rule():
    assert OPS["rms_norm"].signature == "rms_norm(x, w?; eps)"
    assert OPS["linear"].signature == "linear(x, W, bias?)"
    assert OPS["tokens"].signature == "tokens()"


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("nothing", [], {}, "expected an op of ir/ops, got 'nothing'"),
        ("scale", [rows_node(32)], {}, "expected an attribute 'value', got none"),
        ("scale", [rows_node(32)], {"value": "2"}, "expected value to be float"),
        ("scale", [rows_node(32)], {"value": float("inf")}, "expected a finite value"),
        ("scale", [rows_node(32)], {"value": 2.0, "v": 1}, "got 'v'"),
        ("scale", [TOKENS], {"value": 2.0}, "x: expected an f32 tensor, got i32"),
        ("scale", [], {"value": 2.0}, "expected an input 'x', got none"),
        ("add", [rows_node(32), rows_node(64)], {}, r"b: expected f32\[T, 32\], got f32\[T, 64\]"),
        ("add", [rows_node(32)] * 3, {}, "expected 2 inputs, got 3"),
        ("linear", [rows_node(32), weight_node((4, 64))], {}, "last extent of x: expected 64"),
        ("linear", [rows_node(32), rows_node(32)], {}, "W: expected a weight of 2 axes"),
        (
            "linear",
            [rows_node(32), weight_node((4, 32)), weight_node((5,))],
            {},
            r"bias: expected f32\[4\], got f32\[5\]",
        ),
        ("weight", [], {"name": "w", "format": "Q4_K", "shape": (4, 64)}, "whole Q4_K blocks"),
        ("weight", [], {"name": "w", "format": "Q9", "shape": (4, 64)}, "got Q9"),
        (
            "weight",
            [],
            {"name": "w", "format": "F32", "shape": (4, 64), "rows": (3, 2)},
            "within 0..4",
        ),
        ("split_heads", [rows_node(32)], {"heads": 5}, "a divisor of 32, got 5"),
        ("take_outputs", [Node.make("take_outputs", [rows_node(32)])], {}, "expected T, got R"),
        ("quantize", [rows_node(32)], {"block": 256}, "block"),
        ("matmul", [rows_node(32), weight_node((4, 32), "Q8_0")], {}, "blocks of 32 for Q8_0"),
        (
            "matmul",
            [
                Node.make("quantize", [rows_node(256)], {"block": 32}),
                weight_node((4, 256), "Q6_K"),
            ],
            {},
            "blocks of 256 for Q6_K",
        ),
        ("glu", [rows_node(32), rows_node(32)], {"act": "relu"}, "got relu"),
    ],
)
def test_what_breaks_a_rule_is_named(op, inputs, attrs, message):
    with pytest.raises(RuleError, match=message):
        Node.make(op, inputs, attrs, "y")


@pytest.mark.parametrize(
    "attrs",
    [
        {"kind": "half", "rot": 16, "base": 1e4},
        {"kind": "norm", "rot": 15, "base": 1e4},
        {"kind": "norm", "rot": 18, "base": 1e4},
        {"kind": "norm", "rot": 16, "base": 0.0},
        {"kind": "norm", "rot": 16, "base": 1e4, "scaling": "ntk"},
        {"kind": "norm", "rot": 16, "base": 1e4, "scaling": "yarn", "factor": 2.0},
    ],
)
def test_a_rope_without_a_table_is_refused(attrs):
    heads = Node.make("split_heads", [rows_node(32)], {"heads": 2})
    with pytest.raises(RuleError):
        Node.make("rope", [heads], attrs)


def test_attribute_texts():
    assert attr_text((1, 2)) == "(1, 2)" and attr_text((1,)) == "(1,)" and attr_text(()) == "()"
    assert attr_text(1e-6) == "1e-06" and attr_text(None) == "none" and attr_text(True) == "true"
    assert attr_text('a"\n') == r'"a\"\n"'


# ---- the contract, against scalar loops ----------------------------------------------------

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1, max_size=90), st.sampled_from([1, 4, 8, 32]))
def test_chains(values, p):
    terms = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        assert words(ar.chain_sum(terms[None], p)) == words(naive.chains(list(terms), p)[None])


@given(st.integers(0, 2**32 - 1), st.sampled_from([32, 256]))
def test_quantize_takes_any_bits(seed, block):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2**32, (3, 2 * block), np.uint32).view(np.float32)
    x[1] = rng.standard_normal(2 * block) * np.float32(10.0) ** int(rng.integers(-38, 38))
    x[2, :block] = 0
    got = ar.quantize(x, block)
    with np.errstate(all="ignore"):
        for t, b in itertools.product(range(3), range(2)):
            d, q = naive.quantize_block(x[t, b * block : (b + 1) * block])
            assert words(got.d[t, b, None]) == words(d[None])
            assert got.q[t, b * block : (b + 1) * block].tolist() == q


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_a_block_with_a_special_makes_nan(special):
    x = np.ones((1, 64), np.float32)
    x[0, 3] = special
    got = ar.quantize(x, 32)
    assert np.isnan(got.d[0, 0]) and got.d[0, 1] > 0 and not got.q[0, :32].any()
    assert np.isnan(ar.block_product(got, make_weight("Q8_0", (2, 64)))).all()


def test_the_smallest_block_that_is_kept():
    x = np.zeros((2, 32), np.float32)
    x[0, 0], x[1, 0] = 2.0**-100, np.nextafter(np.float32(2.0**-100), np.float32(0))
    got = ar.quantize(x, 32)
    assert got.d[0, 0] > 0 and got.q[0, 0] == 127
    assert got.d[1, 0] == 0 and got.q[1, 0] == 0


@pytest.mark.parametrize("fmt", BLOCK_FORMATS)
def test_block_products_are_the_contract_word_for_word(fmt):
    w = make_weight(fmt, (5, 512 if FORMATS[fmt].values == 256 else 384))
    x = np.random.default_rng(1).standard_normal((3, w.shape[1])).astype(np.float32)
    x[1] *= 1e-20
    x[2, :32] = 0
    got = ar.linear(x, w)
    expected = np.array([[naive.block_row(row, w, n) for n in range(5)] for row in x])
    assert words(got) == words(expected)


@pytest.mark.parametrize("fmt", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("k", [1, 3, 4, 31, 64])
def test_float_products_are_the_contract_word_for_word(fmt, k):
    w = make_weight(fmt, (5, k))
    x = np.random.default_rng(1).standard_normal((3, k)).astype(np.float32)
    wide = ar.floats(w)
    expected = [
        [naive.chains([a * b for a, b in zip(wide[n], r, strict=True)], 4) for n in range(5)]
        for r in x
    ]
    assert words(ar.linear(x, w)) == words(np.array(expected))


@pytest.mark.parametrize("n", [1, 5, 32, 33, 100])
def test_rms_norm(n):
    x = np.random.default_rng(n).standard_normal((2, 3, n)).astype(np.float32)
    w = np.linspace(0.5, 2, n, dtype=np.float32)
    got = ar.rms_norm(x, w, 1e-5)
    for i, j in np.ndindex(2, 3):
        row = x[i, j]
        ss = naive.chains([v * v for v in row], 32)
        r = ar.rsqrt(np.asarray(ss * np.float32(1 / n) + np.float32(1e-5)))
        assert words(got[i, j]) == words((row * r) * w)
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * w
    assert np.abs(got - exact).max() < 1e-5


@settings(deadline=None, max_examples=12)
@given(
    st.integers(0, 1000),
    st.sampled_from([0, 1, 62, 63, 64, 130, 511, 512, 600]),
    st.sampled_from([None, 1, 7, 64, 70, 520]),
    st.sampled_from([None, 3.0]),
)
def test_attention_is_the_contract_word_for_word(seed, position, window, cap):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((1, 2, 6)).astype(np.float32)
    keys = rng.standard_normal((position + 1, 1, 6)).astype(np.float32)
    values = rng.standard_normal((position + 1, 1, 5)).astype(np.float32)
    got = ar.attend(q, np.array([position], np.int32), keys, values, 0.7, window, cap)
    for h in range(2):
        expected = naive.attend_head(q[0, h], keys[:, 0], values[:, 0], position, 0.7, window, cap)
        assert words(got[0, h]) == words(expected)


def test_attention_is_softmax():
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((n, 4, 8)).astype(np.float32) for n in (1, 700))
    v = rng.standard_normal((700, 4, 8)).astype(np.float32)
    got = ar.attend(q, np.array([699], np.int32), k, v, 0.35)
    s = np.einsum("hd,phd->hp", q[0].astype(np.float64), k) * 0.35
    e = np.exp(s - s.max(axis=1, keepdims=True))
    exact = np.einsum("hp,phd->hd", e / e.sum(axis=1, keepdims=True), v)
    assert np.abs(got[0] - exact).max() < 1e-6


def test_rows_of_attention_do_not_see_each_other():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((9, 4, 8)).astype(np.float32)
    k, v = (rng.standard_normal((600, 2, 8)).astype(np.float32) for _ in range(2))
    at = np.array([0, 5, 63, 64, 65, 300, 511, 512, 599], np.int32)
    together = ar.attend(q, at, k, v, 0.3, 100)
    for i, p in enumerate(at):
        alone = ar.attend(q[i : i + 1], at[i : i + 1], k[: p + 1], v[: p + 1], 0.3, 100)
        assert words(alone[0]) == words(together[i])


def test_a_hidden_position_may_hold_anything():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 2, 8)).astype(np.float32)
    k, v = (rng.standard_normal((64, 2, 8)).astype(np.float32) for _ in range(2))
    at = np.array([20], np.int32)
    clean = ar.attend(q, at, k, v, 0.3, 10)
    for hidden in (3, 40):
        k[hidden], v[hidden] = np.nan, np.inf
    assert words(ar.attend(q, at, k, v, 0.3, 10)) == words(clean)


@pytest.mark.parametrize("kind", ["norm", "neox"])
def test_rope_turns_pairs_and_keeps_the_rest(kind):
    x = np.arange(2 * 8, dtype=np.float32).reshape(1, 2, 8)
    cos, sin = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    got = ar.rope(x, cos, sin, kind)[0, 0].tolist()
    expected = {"norm": [-1, 0, -3, 2, 4, 5, 6, 7], "neox": [-2, -3, 0, 1, 4, 5, 6, 7]}
    assert got == expected[kind]


# ---- experts -------------------------------------------------------------------------------


def expert_weights(fmt: str = "F32"):
    shapes = ((4, 32), (4, 64, 32), (4, 64, 32), (4, 32, 64))
    return [make_weight(fmt if len(s) == 3 else "F32", s, i) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("fmt", ["F32", "Q4_0"])
def test_experts_follow_their_definition(fmt):
    gate_inp, gate, up, down = expert_weights(fmt)
    x = np.random.default_rng(9).standard_normal((5, 32)).astype(np.float32)
    got = ar.experts(x, ar.ExpertWeights(gate_inp, gate, up, down), "silu", ar.Router(2))
    logits = ar.linear(x, gate_inp)
    for t in range(5):
        order = sorted(range(4), key=lambda e: (-logits[t, e], e))[:2]
        p = np.exp(logits[t].astype(np.float64) - logits[t].max())
        p = p / p.sum()
        exact = np.zeros(32)
        for e in order:
            wg, wu, wd = (
                Weight(w.format, w.shape[1:], w.raw.reshape(4, w.shape[1], -1)[e])
                for w in (gate, up, down)
            )
            row = x[t : t + 1]
            h = ar.glu(ar.linear(row, wg), ar.linear(row, wu), "silu")
            exact += ar.linear(h, wd)[0] * p[e] / sum(p[i] for i in order)
        assert np.abs(got[t] - exact).max() < 1e-6


def test_router_ties_go_to_the_lower_index():
    gate_inp, gate, up, down = expert_weights()
    gate_inp.raw[:] = 0
    x = np.ones((1, 32), np.float32)
    tied = ar.experts(x, ar.ExpertWeights(gate_inp, gate, up, down), "silu", ar.Router(2))
    first_two = [
        Weight(w.format, (2, *w.shape[1:]), w.raw[: len(w.raw) // 2])
        for w in (gate_inp, gate, up, down)
    ]
    assert words(tied) == words(ar.experts(x, ar.ExpertWeights(*first_two), "silu", ar.Router(2)))


# ---- lowered ops are compositions ----------------------------------------------------------


@pytest.mark.parametrize("fmt", ["Q4_0", "Q4_K", "Q8_0", "F16"])
def test_lowered_ops_give_the_words_of_what_they_replace(fmt):
    run = None  # these meanings ask nothing of the step
    w, up = make_weight(fmt, (256, 256), 1), make_weight(fmt, (256, 256), 2)
    norm, bias = make_weight("F32", (256,), 3), make_weight("F32", (256,), 4)
    norm, bias = (Weight(v.format, v.shape, v.raw.reshape(1, -1)) for v in (norm, bias))
    x = np.random.default_rng(5).standard_normal((3, 256)).astype(np.float32)
    residual = x[::-1].copy()

    def meaning(op, *args, **attrs):
        return OPS[op].run(run, *args, **attrs)

    normed = meaning("rms_norm", x, norm, eps=1e-6)
    block = FORMATS[fmt].values
    xq = normed
    if block > 1:
        xq = meaning("norm_quantize", x, norm, eps=1e-6, block=block)
        assert isinstance(xq, Quantized)
        same = meaning("quantize", normed, block=block)
        assert (xq.q == same.q).all() and words(xq.d) == words(same.d)
    y = meaning("linear", normed, w, bias)
    assert words(meaning("matmul", xq, w, bias, None)) == words(y)
    assert words(meaning("matmul", xq, w, bias, residual)) == words(y + residual)
    gate, lifted = meaning("linear", normed, w, None), meaning("linear", normed, up, None)
    glu = meaning("mul", meaning("silu", gate), lifted)
    assert words(meaning("glu", gate, lifted, act="silu")) == words(glu)
    assert words(meaning("glu_matmul", xq, w, up, act="silu")) == words(glu)
    both = meaning("glu_quantize", gate, lifted, act="silu", block=32)
    assert words(both.d) == words(meaning("quantize", glu, block=32).d)
