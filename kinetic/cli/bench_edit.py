"""edit256: an answer that rewrites a short file with one name changed, as an editing request runs.

Most of such an answer stands in its prompt, which is where guesses come from. The same tokens are
decoded plainly as well: the two must be equal.
"""

from __future__ import annotations

from typing import NamedTuple

from kinetic.api import Model, SamplingParams
from kinetic.errors import InternalError
from kinetic.generation import FinishEvent, GenerationRequest, TextEvent

EDIT_TOKENS = 256
SOURCE = """\
use std::collections::BTreeMap;

/// Counts how often each word stands in a text.
pub struct Tally {
    totals: BTreeMap<String, usize>,
    longest: usize,
}

impl Tally {
    pub fn new() -> Self {
        Tally { totals: BTreeMap::new(), longest: 0 }
    }

    pub fn read(&mut self, text: &str) {
        for word in text.split_whitespace() {
            let word = word.trim_matches(|c: char| !c.is_alphanumeric());
            if word.is_empty() {
                continue;
            }
            self.longest = self.longest.max(word.len());
            *self.totals.entry(word.to_lowercase()).or_insert(0) += 1;
        }
    }

    pub fn most_common(&self) -> Option<(&String, &usize)> {
        self.totals.iter().max_by_key(|(_, count)| **count)
    }

    pub fn print(&self) {
        for (word, count) in &self.totals {
            println!("{:width$} {}", word, count, width = self.longest);
        }
    }
}
"""
ASK = (
    "Rename the field `totals` to `counts` everywhere in this file and answer with the whole file."
)


class EditRun(NamedTuple):
    """One run: its tokens, and the seconds from the first to the last of them."""

    tokens: list[int]
    seconds: float

    @property
    def speed(self) -> float:
        """Tokens a second; the clock starts at the first token."""
        return (len(self.tokens) - 1) / self.seconds


def edit_prompt(model: Model) -> list[int]:
    """The request, through the chat template; a model without one is shown where to go on."""
    text = f"{ASK}\n\n```rust\n{SOURCE}```\n"
    if model.chat_template is None:
        text += "\nThe whole file with the field renamed:\n\n```rust\n"
    return model.encode_prompt(text)


def run_edit(model: Model, prompt: list[int], number: int) -> EditRun:
    """Answer the request. `number` differs for each run: nothing may be left of one for the next.

    *Raises* any KineticError of generating.
    """
    request = GenerationRequest(
        prompt,
        SamplingParams(temperature=0),
        EDIT_TOKENS,
        salt=f"bench {number}",
        ignore_eos=True,  # a small model may end early; the work is the same for all
    )
    tokens: list[int] = []
    for event in model.start(request).events():
        if isinstance(event, TextEvent) and event.token is not None:
            tokens.append(event.token.id)
        elif isinstance(event, FinishEvent):
            if event.error is not None:
                raise event.error
            return EditRun(tokens, event.counts.generate_seconds)
    raise InternalError("an answer ended without saying so; please report it")


def plain_edit(model: Model, prompt: list[int]) -> list[int]:
    """The same answer, one pass over the weights for each token and nothing guessed."""

    def decode() -> list[int]:
        engine = model.engine
        sequence = engine.new_sequence()
        try:
            logits = engine.prefill(sequence, prompt)
            tokens = [int(logits.argmax())]
            while len(tokens) < EDIT_TOKENS:
                tokens.append(int(engine.decode(sequence, tokens[-1]).argmax()))
            return tokens
        finally:
            sequence.close()

    return model.scheduler.call(decode)
