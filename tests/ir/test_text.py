"""A graph's text parses back to the identical graph; other text fails in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetic.errors import KineticError, UsageError
from kinetic.ir.build import Builder
from kinetic.ir.graph import CacheSpec, Graph, Meta, Node
from kinetic.ir.text import parse
from kinetic.ir.verify import verify

SMALL = """\
graph "small" arch="test" n_ctx_train=8 n_vocab=4 n_layers=1 n_embd=32 n_heads=2 n_kv_heads=1 \
head_dim=16
cache "blk.0" : attention heads=1 k=16 v=16 window=4

%w : q8_0[4, 32]
%norm : f32[32]
%part : q8_0[1, 32] = weight(name="w", format="Q8_0", shape=(4, 32), rows=(1, 1))

%tokens : i32[T] = tokens()
%x : f32[T, 32] = embed(%tokens, %w)

%blk.0.norm : f32[T, 32] = rms_norm(%x, w=%norm, eps=1e-06)
%blk.0.y : f32[T, 32] = scale(%blk.0.norm, value=0.3)

%out : f32[R, 32] = take_outputs(%blk.0.y)
%part_of : f32[R, 1] = linear(%out, %part)

return logits=%out, hidden=%part_of
"""


def test_the_text_is_what_a_reader_expects():
    assert str(parse(SMALL)) == SMALL


def test_comments_and_space_do_not_matter():
    loose = SMALL.replace("\n\n", "\n# a comment\n\n").replace("(4, 32)", "( 4,32 )")
    assert parse(loose.replace("f32[T, 32]", "f32[T,32]")).same_as(parse(SMALL))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph ", "grph ", "line 1, column 1: this is not the text of a graph"),
        ("%norm : f32[32]", "%norm : f32[16]", r"line 11.*w: expected f32\[32\], got f32\[16\]"),
        ("%norm : f32[32]", "%norm : f32[T]", r"line 5: f32\[T\] is not the type of a weight"),
        ("%norm : f32[32]", "%w : f32[32]", "line 5: %w is defined twice"),
        ("%norm : f32[32]", "%norm : q9_9[32]", "line 5: .*got Q9_9"),
        ("rms_norm(%x,", "rms_norm(%z,", "line 11: %z is used before it is defined"),
        ("rms_norm", "rmsnorm", "line 11: there is no op rmsnorm"),
        ("eps=1e-06", "eps=true", "line 11: .*expected eps to be float"),
        ("eps=1e-06", "epsilon=1e-06", "line 11: .*got 'epsilon'"),
        ("w=%norm", "v=%norm", r"line 11: rms_norm\(x, w\?; eps\) has no place for v"),
        ("f32[T, 32] = scale", "f32[T, 16] = scale", r"line 12: %blk.0.y: expected f32\[T, 32\]"),
        ("n_vocab=4", "vocab=4", "line 1: .*vocab"),
        ("heads=1 k", "head=1 k", "line 2: .*head"),
        ('"blk.0"', '"\\q"', "line 2: .* is not a string"),
        ("logits=%out", "logits=%outs", "%outs is used before it is defined"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old, new, message):
    assert old in SMALL
    with pytest.raises(UsageError, match=message):
        parse(SMALL.replace(old, new, 1))


@settings(max_examples=150)
@given(st.text(max_size=60), st.integers(0, len(SMALL)), st.integers(0, 40))
def test_any_text_parses_or_fails_in_one_sentence(junk, at, length):
    try:
        parse(SMALL[:at] + junk + SMALL[at + length :])
    except KineticError as error:
        assert str(error).startswith("line ")


# ---- random graphs -------------------------------------------------------------------------

names = st.sampled_from(["x", "attn_norm", "ffn.0", "a-b", "", "y"])
values = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-0.0, 1e-6, 1e22])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random graph of a few rows and heads ops."""
    b = Builder()
    weights = [
        b.declare("w0", "F32", (32, 32)),
        b.declare("other name", "Q8_0", (32, 32), label="w1"),
        b.declare("w2", "BF16", (64, 32), rows=(3, 32), label="w2.part"),
    ]
    rows = [b.embed(b.tokens(), weights[0], "embd")]
    caches: dict[str, CacheSpec] = {}
    for i in range(draw(st.integers(0, 14))):
        x, y = draw(st.sampled_from(rows)), draw(st.sampled_from(rows))
        with b.scope(f"blk.{draw(st.integers(0, 2))}"):
            name, kind = draw(names), draw(st.integers(0, 6))
            if kind == 0:
                rows.append(b.scale(x, draw(values), name))
            elif kind == 1:
                rows.append(b.add(x, y, name))
            elif kind == 2:
                rows.append(b.linear(x, draw(st.sampled_from(weights)), None, name))
            elif kind == 3:
                rows.append(b.rms_norm(x, None, draw(values), name))
            elif kind == 4:
                rows.append(b.softcap(x, draw(values), name))
            elif kind == 5:
                h = b.split_heads(x, draw(st.sampled_from([1, 2, 4])))
                rot = draw(st.sampled_from([2, 4, 8]))
                rows.append(b.merge_heads(b.rope(h, None, kind="neox", rot=rot, base=1e4)))
            else:
                window = draw(st.none() | st.integers(1, 99))
                q, k, v = (b.split_heads(value, 2) for value in (x, y, y))
                caches[f"c{i}"] = CacheSpec("attention", 2, 16, 16, window)
                a = b.attention(q, k, v, scale=draw(values), window=window, cache=f"c{i}")
                rows.append(b.merge_heads(a))
    out = b.take_outputs(rows[-1], "logits")
    wanted = {node.attrs["cache"] for node in Graph((), {"o": out}, "", META) if node.spec.writes}
    kept = {name: spec for name, spec in caches.items() if name in wanted}
    meta = Meta("any", 1, 2, 3, 4, 5, 6, 7, kept)
    return b.graph(draw(st.text(max_size=8)), meta, logits=out)


META = Meta("any", 1, 2, 3, 4, 5, 6, 7)


@settings(max_examples=120, deadline=None)
@given(graphs())
def test_a_random_graph_comes_back_identical(graph):
    verify(graph)
    again = parse(str(graph))
    assert again.same_as(graph)
    assert again.hash() == graph.hash()
    assert all(a is b for a, b in zip(again, graph, strict=True))


def test_equal_names_cannot_print():
    t = Node.make("tokens", name="t")
    w = Node.make("weight", (), {"name": "w", "format": "F32", "shape": (2, 2)}, "t")
    graph = Graph((t,), {"x": Node.make("embed", (t, w), {}, "x")}, "g", META)
    with pytest.raises(KineticError, match="two values are called %t"):
        str(graph)
