"""Drafting (RAD-1): guess a few tokens, run them in one step, keep those that are right.

    text.py      a text with an index of its n-grams, and a reader that follows along in it
    sources.py   where guesses come from: the context, earlier requests
    block.py     the model's own prediction block, where its file has one
    drafter.py   which source is believed how much, from how it did lately
    plan.py      how many guesses are worth their rows, from what steps cost here
    accept.py    which guesses survive

A guess is kept if and only if it is the token that plain decoding draws at its place, from the
same logits and the same block of random numbers (docs/arithmetic.md section 10). Guesses change
how long an answer takes, never a word of it.
"""

from kinetic.runtime.drafting.accept import accept
from kinetic.runtime.drafting.block import FromBlock, PredictionBlock
from kinetic.runtime.drafting.drafter import Draft, Drafter
from kinetic.runtime.drafting.plan import StepCost, draft_lengths
from kinetic.runtime.drafting.sources import Earlier, FromContext, FromEarlier, Source

__all__ = [
    "Draft",
    "Drafter",
    "Earlier",
    "FromBlock",
    "FromContext",
    "FromEarlier",
    "PredictionBlock",
    "Source",
    "StepCost",
    "accept",
    "draft_lengths",
]
