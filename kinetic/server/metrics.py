"""What the server has done since it started, in Prometheus' text format.

Names are llama-server's, so that its dashboards work; Kinetic's own begin with `kinetic:`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetic.generation import FinishEvent

if TYPE_CHECKING:
    from kinetic.server.slots import Slots


@dataclass
class Metrics:
    """Sums over all requests. *Units*: tokens and seconds."""

    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    generate_seconds: float = 0.0
    most_tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def count(self, finish: FinishEvent) -> None:
        """Add one finished answer."""
        counts = finish.counts
        self.requests += 1
        self.cancelled += finish.reason == "cancelled"
        self.failed += finish.reason == "error"
        if counts.prompt_seconds > 0:
            self.prompt_tokens += counts.prompt_tokens - counts.cached_tokens
            self.cached_tokens += counts.cached_tokens
            self.prompt_seconds += counts.prompt_seconds
        self.generated_tokens += counts.generated_tokens
        self.generate_seconds += counts.generate_seconds
        self.drafted += counts.drafted
        self.accepted += counts.accepted
        self.most_tokens = max(self.most_tokens, counts.prompt_tokens + counts.generated_tokens)

    def text(self, slots: Slots) -> str:
        """The page that a scraper reads."""

        def speed(tokens: int, seconds: float) -> float:
            return tokens / seconds if seconds > 0 else 0.0

        prompt, answer = self.prompt_seconds, self.generate_seconds
        rows: list[tuple[str, str, str, float]] = [
            ("counter", "llamacpp:requests_total", "Finished requests", self.requests),
            ("counter", "llamacpp:prompt_tokens_total", "Prompt tokens run", self.prompt_tokens),
            (
                *("counter", "llamacpp:prompt_tokens_cached_total"),
                *("Prompt tokens reused from an earlier request", self.cached_tokens),
            ),
            ("counter", "llamacpp:prompt_seconds_total", "Seconds running prompts", prompt),
            (
                *("counter", "llamacpp:tokens_predicted_total"),
                *("Tokens generated", self.generated_tokens),
            ),
            (
                *("counter", "llamacpp:tokens_predicted_seconds_total"),
                *("Seconds generating tokens", answer),
            ),
            (
                *("counter", "llamacpp:n_tokens_max"),
                *("Most tokens of one request, prompt and answer", self.most_tokens),
            ),
            (
                *("gauge", "llamacpp:prompt_tokens_seconds"),
                *("Average prompt tokens a second", speed(self.prompt_tokens, prompt)),
            ),
            (
                *("gauge", "llamacpp:predicted_tokens_seconds"),
                *("Average generated tokens a second", speed(self.generated_tokens, answer)),
            ),
            ("gauge", "llamacpp:requests_processing", "Requests being answered", slots.busy),
            ("gauge", "llamacpp:requests_deferred", "Requests waiting for a slot", slots.waiting),
            (
                *("counter", "kinetic:requests_cancelled_total"),
                *("Requests whose client left or that were stopped", self.cancelled),
            ),
            ("counter", "kinetic:requests_failed_total", "Requests the engine failed", self.failed),
            ("counter", "kinetic:tokens_drafted_total", "Tokens guessed ahead", self.drafted),
            ("counter", "kinetic:tokens_accepted_total", "Guesses that were right", self.accepted),
        ]
        return "".join(
            f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value:.10g}\n"
            for kind, name, text, value in rows
        )
