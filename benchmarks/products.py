"""Products of float32 matrices by threadcast's operator, and by PyTorch's; `make bench-products`.

    python benchmarks/products.py [--rounds 9] [--json] [--write]

Each product is made by both in turns, with one thread and with all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from run_facts import ROOT, RunFacts
from torch import Tensor

from threadcast.core import read_machine
from threadcast.runtime.fusion.products import operators, serves

PAGE = ROOT / "docs" / "product-tables.md"
TURN_S = 0.05

_HEAD = """# Products of matrices

`make bench-products`, {run}.

Microseconds of a float32 product (rows, depth) x (depth, columns) by `torch.mm` and by `threadcast::product`, which
plans use where it is faster on a machine (here: {used}); medians of {rounds} turns of {turn:g} s, which alternate,
with one thread and with {threads}. *gain*: PyTorch's time over ours, median and quartiles of the turns. *of*: what a
linear layer multiplies in a training step; the three lie in memory in three ways. *GFLOP/s*: ours.

| rows | depth | columns | of | threads | PyTorch | threadcast | gain | quartiles | GFLOP/s |
|---|---|---|---|---|---|---|---|---|---|
"""

SIZES = (
    (16, 256, 256), (32, 256, 256), (64, 256, 256), (256, 256, 256), (1024, 64, 64), (197, 192, 768), (32, 768, 768),
    (128, 768, 768), (128, 768, 3072), (512, 768, 768), (2048, 96, 384),
)  # fmt: skip
"""Rows of the batch, inputs and outputs of a linear layer."""


@dataclass(frozen=True, slots=True)
class Case:
    """One product of a linear layer's step."""

    of: str
    a: Tensor
    b: Tensor


def cases(batch: int, inputs: int, outputs: int) -> list[Case]:
    """The products of the forward pass and of both gradients."""
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (
        torch.randn(shape, generator=generator) for shape in ((batch, inputs), (outputs, inputs), (batch, outputs))
    )
    return [Case("result", x, weight.t()), Case("input's gradient", gradient, weight),
            Case("weight's gradient", gradient.t(), x)]  # fmt: skip


def seconds_of(call: Callable[[], object]) -> float:
    """Median seconds of a call in one turn."""
    found: list[float] = []
    end_s = time.perf_counter() + TURN_S
    while time.perf_counter() < end_s or len(found) < 3:
        began_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """Microseconds of both, and the gain, with as many threads as PyTorch takes now."""
    product, _ = operators()
    turns: dict[str, list[float]] = {"pytorch": [], "threadcast": []}
    for number in range(rounds + 1):
        for name, call in (
            ("pytorch", lambda: torch.mm(case.a, case.b)), ("threadcast", lambda: product(None, case.a, case.b)),
        ):  # fmt: skip
            seconds = seconds_of(call)
            if number:  # the first fills caches, and makes kernels
                turns[name].append(seconds)
    gains = [one / other for one, other in zip(turns["pytorch"], turns["threadcast"], strict=True)]
    low, gain, high = statistics.quantiles(gains, n=4, method="inclusive")
    medians = {name: 1e6 * statistics.median(values) for name, values in turns.items()}
    return {**medians, "gain": gain, "low": low, "high": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    chosen = parser.parse_args()
    run, threads, rows = RunFacts.now(), len(read_machine()), []
    for size in SIZES:
        for case in cases(*size):
            for count in sorted({1, threads}):
                torch.set_num_threads(count)
                (m, k), n = case.a.shape, case.b.shape[1]
                row = {"rows": m, "depth": k, "columns": n, "of": case.of, "threads": count}
                rows.append(row | measured(case, chosen.rounds))
                if not chosen.json:
                    print(_line(rows[-1]), flush=True)
    if chosen.json:
        print(json.dumps({"run": run.to_json(), "serves": serves(), "rows": rows}))
    if chosen.write:
        used = "it is" if serves() else "it is not"
        head = _HEAD.format(run=run, used=used, rounds=chosen.rounds, turn=TURN_S, threads=threads)
        PAGE.write_text(head + "".join(f"{_line(row)}\n" for row in rows))


def _line(row: dict[str, Any]) -> str:
    speed = 2e-3 * row["rows"] * row["depth"] * row["columns"] / row["threadcast"]
    return (
        f"| {row['rows']} | {row['depth']} | {row['columns']} | {row['of']} | {row['threads']} | "
        f"{row['pytorch']:.3g} | {row['threadcast']:.3g} | {row['gain']:.2f} | "
        f"{row['low']:.2f} to {row['high']:.2f} | {speed:.0f} |"
    )


if __name__ == "__main__":
    main()
