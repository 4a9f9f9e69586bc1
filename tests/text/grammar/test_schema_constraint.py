"""A schema holds an answer to itself, or is refused with a sentence that names why."""

from __future__ import annotations

import numpy as np
import pytest
from support.bytes_vocabulary import OPEN, VOCABULARY, follows

from kinetic.errors import UsageError
from kinetic.text.grammar import AfterReasoning, json_schema
from kinetic.text.reasoning import HARMONY, ReasoningStyle

pytest.importorskip("llguidance")


def obj(required=None, **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


A = {"a": {"type": "integer"}}
NODE = obj(v={"type": "integer"}, kids={"type": "array", "items": {"$ref": "#/$defs/node"}})
PAIR = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 1000},
    "minItems": 2,
    "maxItems": 2,
}
CASES = {
    "JS-01": (
        obj(tags={"type": "array", "items": {"type": "string"}, "maxItems": 0}),
        ['{"tags":[]}'],
        ['{"tags":["x"]}'],
    ),
    "JS-03": (
        obj(id={"type": "string", "pattern": r"^\d{3}-\w+$"}),
        ['{"id":"123-ab_9"}'],
        ['{"id":"12-ab"}', '{"id":"123-"}', '{"id":"x123-a"}'],
    ),
    "JS-05": (
        obj(o=obj(s={"type": "string", "pattern": "^[a-z]+$"})),
        ['{"o":{"s":"abc"}}'],
        ['{"o":{"s":"ABC"}}', '{"o":{"s":""}}'],
    ),
    "JS-10": (
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        ['{"v":1,"kids":[]}', '{"v":1,"kids":[{"v":2,"kids":[]}]}'],
        ['{"v":1}', '{"v":1,"kids":[{}]}'],
    ),
    "JS-11 absent": (
        {"type": "object", "properties": A, "required": ["a"]},
        ['{"a":1,"z":"q"}', '{"a":1}'],
        ['{"z":1}', '{"a":1,"a":"x"}', '{"a":1,"\\u0061":"x"}'],
    ),
    "JS-11 typed": (
        {
            "type": "object",
            "properties": A,
            "required": ["a"],
            "additionalProperties": {"type": "number"},
        },
        ['{"a":1,"z":2.5}', '{"a":1,"ab":2}', '{"a":1,"":2}'],
        ['{"a":1,"z":"q"}', '{"a":1,"\\u0061":0.5}'],
    ),
    "JS-13": (
        obj(n={"type": "integer", "minimum": 3, "maximum": 120}),
        ['{"n":3}', '{"n":10}', '{"n":120}'],
        ['{"n":2}', '{"n":121}', '{"n":03}', '{"n":-3}'],
    ),
    "JS-15": (
        {
            **obj(
                p={
                    "oneOf": [
                        {"type": "integer", "minimum": 0, "maximum": 500},
                        {"$ref": "#/$defs/L"},
                    ]
                }
            ),
            "$defs": {"L": PAIR},
        },
        ['{"p":0}', '{"p":500}', '{"p":[0,1000]}'],
        ['{"p":501}', '{"p":[1]}', '{"p":[1,2,3]}', '{"p":[1,1001]}'],
    ),
    "JS-16": (
        obj(["a"], a={"type": "integer"}, b={"type": "integer"}),
        ['{"a":1}', '{"a":1,"b":2}'],
        ['{"a":1,"b":null}', '{"b":2}'],
    ),
    "JS-18": (
        {"type": "array", "items": {"type": "number"}, "minItems": 10, "maxItems": 1000},
        ["[1,2,3,4,5,6,7,8,9,10]"],
        ["[1]"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    schema, accept, reject = CASES[name]
    for text in accept:
        assert follows(json_schema(VOCABULARY, schema), text), text
    for text in reject:
        assert not follows(json_schema(VOCABULARY, schema), text), text


@pytest.mark.parametrize(
    "schema, word",
    [
        (obj(x={"type": "string", "pattern": "^(abc$"}), "regex"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"type": "string", "not": {"const": "a"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "a(?=b)"}, "look-around"),
        ({"$ref": "http://example.com/schema"}, r"\$ref"),
        ({"type": "strin"}, "strin"),
        (3, "object"),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        json_schema(VOCABULARY, schema)


def test_forty_levels_compile_and_bottomless_ones_do_not() -> None:
    schema = {"type": "integer"}
    for _ in range(40):
        schema = obj(a=schema, b={"type": "string"}, c={"type": "null"})
    json_schema(VOCABULARY, schema)
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    with pytest.raises(UsageError, match="deep"):
        json_schema(VOCABULARY, schema)


def test_rollback_and_clone_restore_the_mask() -> None:
    constraint = json_schema(VOCABULARY, obj(a={"enum": ["xy", "xz"]}))
    for byte in b'{"a":"x':
        constraint.accept(byte)
    before, other = constraint.mask().copy(), constraint.clone()
    for byte in b'y"}':
        constraint.accept(byte)
    assert constraint.finished and not other.finished
    constraint.rollback(3)
    np.testing.assert_array_equal(constraint.mask(), before)
    np.testing.assert_array_equal(other.mask(), before)


STYLE = ReasoningStyle("<think>", "</think>")


def test_the_grammar_starts_after_the_thinking() -> None:
    def fresh(is_open: bool) -> AfterReasoning:
        inner = json_schema(VOCABULARY, {"const": 5})
        return AfterReasoning(inner, VOCABULARY, STYLE, is_open)

    assert follows(fresh(True), "I < think </thin 9</think>\n5")
    assert not follows(fresh(True), "no end")
    assert follows(fresh(False), "5") and not follows(fresh(False), "no")
    constraint = fresh(False)
    constraint.accept(OPEN)
    assert follows(constraint, "hm</think>5")
    constraint.rollback(len("</think>5"))
    assert follows(constraint.clone(), "</think>5") and follows(constraint, "?</think>5")


def test_an_opener_of_several_tokens() -> None:
    style = ReasoningStyle("[THINK]", "[/THINK]")

    def fresh(schema) -> AfterReasoning:
        return AfterReasoning(json_schema(VOCABULARY, schema), VOCABULARY, style, False)

    assert follows(fresh({"const": 5}), "[THINK]5 [/THIN or so[/THINK]\n5")
    assert follows(fresh({"const": 5}), "5") and not follows(fresh({"const": 5}), "[T5")
    constraint = fresh({"const": 5})
    for byte in b"[THINK]x[/THINK]5":
        constraint.accept(byte)
    constraint.rollback(14)
    assert follows(constraint.clone(), "INK]y[/THINK]5") and not follows(constraint, "5")
    # An answer that may begin as the opener does is one: its first token cannot be both.
    assert follows(fresh({"type": "array"}), "[1]") and not follows(fresh({"type": "array"}), "[T")


def test_channels_lead_to_the_answer() -> None:
    def fresh(is_open: bool = False) -> AfterReasoning:
        return AfterReasoning(json_schema(VOCABULARY, {"const": 5}), VOCABULARY, HARMONY, is_open)

    think = "<|channel|>analysis<|message|>hm 7<|end|><|start|>assistant"
    assert follows(fresh(), f"{think}<|channel|>final<|message|>5")
    assert follows(fresh(), "<|channel|>final<|message|>5")
    assert follows(fresh(True), "hm<|end|><|start|>assistant<|channel|>final<|message|>5")
    for wrong in ("5", think + "5", "<|channel|>final<|message|>6", "<|channel|>other"):
        assert not follows(fresh(), wrong), wrong


def test_what_would_end_the_process_is_refused() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    with pytest.raises(UsageError, match="definitions"):
        json_schema(VOCABULARY, {"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": True}})
    with pytest.raises(UsageError, match="cannot be enforced"):
        json_schema(VOCABULARY, {"$ref": "#"})
