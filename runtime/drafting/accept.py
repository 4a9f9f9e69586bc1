"""Which guesses survive: those that plain decoding would have drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def accept(chains: Sequence[Sequence[int]], draw: Callable[[int, int], int]) -> Iterator[int]:
    """The tokens of a verified step, one more than guesses that survive.

    `chains` are guesses that all start at the same place (one chain, or the branches of a
    tree; `[[]]` for none). `draw(chain, i)` is the token that plain decoding chooses after the
    first `i` guesses of that chain; it is asked only when those have survived, once for each
    token, so whatever state it keeps moves on with the tokens that are kept and no further.

    *Source:* the verification of Leviathan et al. 2023 and Chen et al. 2023, with the drawn
    token compared rather than a probability: the random number of a place is fixed, so a guess
    survives exactly where drawing would have given it.
    """
    alive = list(range(len(chains)))
    place = 0
    while alive:
        token = draw(alive[0], place)
        yield token
        alive = [c for c in alive if place < len(chains[c]) and chains[c][place] == token]
        place += 1
