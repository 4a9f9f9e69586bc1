#!/usr/bin/env python3
"""The speed that `kinetic fit` expects of a model beside the one it decodes at.

    python3 scripts/fit_vs_bench.py model.gguf -r 8

Run it with the project's own Python, with no other program running: decoding threads wait for
each other and lose far more to a busy machine than reading does. Both take turns; medians count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from kinetic.api import Model
from kinetic.ir.gguf_split import open_model
from kinetic.machine.memory import read_speed
from kinetic.models.cost import cost_of, expected_speed

TOKENS = 64


def main() -> int:
    """Measure both, print one line; 1 when they are more than a quarter apart."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="the GGUF file")
    parser.add_argument("-r", "--repetitions", type=int, default=8)
    options = parser.parse_args()
    with open_model(options.model) as gguf:
        per_token = cost_of(gguf).per_token
    model = Model.load(options.model, ctx_size=512)
    reads, decodes = [], []
    for _ in range(options.repetitions):
        reads.append(read_speed(model.threads))
        decodes.append(TOKENS / model.bench_decode(TOKENS))
    model.close()
    bandwidth, measured = median(reads), median(decodes)
    low, high = expected_speed(per_token, bandwidth)
    middle = (low + high) / 2
    print(
        f"{options.model.name}: memory {bandwidth / 1e9:.1f} GB/s, expected {low:.1f}-{high:.1f}, "
        f"measured {measured:.1f} t/s, {100 * (middle / measured - 1):+.0f}%"
    )
    return 0 if abs(middle / measured - 1) <= 0.25 else 1


if __name__ == "__main__":
    raise SystemExit(main())
