"""Answers held to a grammar.

    vocabulary = GrammarVocabulary(tokenizer); vocabulary.warm()        # once a model
    constraint = json_schema(vocabulary, schema)                        # UsageError if it cannot
    constraint = json_value(vocabulary)                                 # any JSON
    constraint = gbnf(vocabulary, 'root ::= "yes" | "no"')              # llama.cpp's notation
    constraint = AfterReasoning(constraint, vocabulary, style, is_open) # thinking first

Each is a `runtime.sampling.constraint.Constraint`. Keys that a schema does not name are allowed
unless it says `additionalProperties: false`.
"""

from kinetic.text.grammar.after_reasoning import AfterReasoning
from kinetic.text.grammar.compile import gbnf, json_schema, json_value
from kinetic.text.grammar.matcher import GrammarConstraint
from kinetic.text.grammar.vocabulary import GrammarVocabulary

__all__ = [
    "AfterReasoning",
    "GrammarConstraint",
    "GrammarVocabulary",
    "gbnf",
    "json_schema",
    "json_value",
]
