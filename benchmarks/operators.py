"""Operators of threadcast beside PyTorch's.

    python benchmarks/operators.py [--rounds 9] [--json] [--write]

Products of float32 matrices, made by both in turns, with one thread and with all. A minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from figures.steps import OPERATORS
from run_facts import RunFacts
from turns import median_s

from threadcast.core import read_machine
from threadcast.runtime.operators import products

TURN_S = 0.05

LAYERS = (
    (8, 768, 768), (16, 256, 256), (32, 256, 256), (64, 256, 256), (256, 256, 256), (1024, 64, 64), (197, 192, 768),
    (32, 768, 768), (128, 768, 768), (128, 768, 3072), (512, 768, 768), (2048, 96, 384),
)  # fmt: skip
"""Rows of the batch, inputs and outputs of a linear layer."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operator's work, by both."""

    operator: str
    kind: str
    """What its sizes have in common."""
    sizes: str
    of: str
    pytorch: Callable[[], object]
    threadcast: Callable[[], object]


def cases() -> Iterator[Case]:
    """All that is measured, in the order of the table."""
    for size in LAYERS:
        yield from layer(*size)


def layer(batch: int, inputs: int, outputs: int) -> Iterator[Case]:
    """The products of a linear layer's forward pass and of both gradients."""
    product, _ = products.operators()
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (
        torch.randn(shape, generator=generator) for shape in ((batch, inputs), (outputs, inputs), (batch, outputs))
    )
    for of, a, b in (
        ("result", x, weight.t()), ("input's gradient", gradient, weight), ("weight's gradient", gradient.t(), x),
    ):  # fmt: skip
        sizes = f"{a.shape[0]} x {a.shape[1]} x {b.shape[1]}"
        theirs, ours = partial(torch.mm, a, b), partial(product, None, a, b)
        yield Case("mm", of, sizes, of, theirs, ours)


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """Microseconds of both, and the gain, with as many threads as PyTorch takes now."""
    turns: dict[str, list[float]] = {"pytorch": [], "threadcast": []}
    for number in range(rounds + 1):
        for name, seconds in ((name, median_s(getattr(case, name), TURN_S)) for name in turns):
            if number:  # the first fills caches, and makes kernels
                turns[name].append(seconds)
    gains = [one / other for one, other in zip(turns["pytorch"], turns["threadcast"], strict=True)]
    low, gain, high = statistics.quantiles(gains, n=4, method="inclusive")
    medians = {f"{name}_us": 1e6 * statistics.median(values) for name, values in turns.items()}
    return {**medians, "gain": gain, "gain_low": low, "gain_high": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=OPERATORS.writes)
    chosen = parser.parse_args()
    if chosen.rounds < 2:
        parser.error("--rounds must be 2 at least: the spread is that of the turns")
    run, threads, rows = RunFacts.now(), len(read_machine()), []
    for case in cases():
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            sizes = {"operator": case.operator, "kind": case.kind, "sizes": case.sizes, "of": case.of}
            rows.append(sizes | {"threads": count} | measured(case, chosen.rounds))
            if not chosen.json:
                print(OPERATORS.printed(rows[-1:]).splitlines()[2], flush=True)
    used = {"mm": products.serves()}
    if chosen.json:
        print(json.dumps({"run": run.to_json(), "used": used, "rows": rows}))
    if chosen.write:
        OPERATORS.store(rows, run)


if __name__ == "__main__":
    main()
