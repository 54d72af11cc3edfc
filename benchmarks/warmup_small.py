"""Functions of microseconds: how long threadcast takes to leave them alone, and what a call costs afterwards.

    python benchmarks/warmup_small.py NAME

Runs one function in this process and writes a line of JSON; `benchmarks/warmup.py --small` runs each in a fresh one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import threadcast

MOST_S = 60.0
"""Seconds after which a function counts as not decided."""

ROUNDS, CALLS = 30, 200
"""Turns of eager and optimised calls afterwards, and calls in a turn."""


def addition() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Adds two tensors of 20 numbers."""
    return torch.add, (torch.randn(4, 5), torch.randn(4, 5))


def linear() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """One layer of 8 units, batch 8."""
    return nn.Linear(8, 8).eval(), (torch.randn(8, 8),)


def mlp() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Three layers of 16 units, batch 8."""
    layers = (nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    return nn.Sequential(*layers).eval(), (torch.randn(8, 16),)


FUNCTIONS = {
    "addition of two 4x5 tensors": addition, "Linear(8, 8), batch 8": linear, "MLP 16-16-16-4, batch 8": mlp,
}  # fmt: skip


def measured(title: str) -> dict[str, Any]:
    """Seconds and calls until the report says what runs, the longest call, and microseconds of a call afterwards."""
    function, arguments = FUNCTIONS[title]()
    with torch.no_grad():
        for _ in range(200):
            function(*arguments)
    call = threadcast.optimize(function)
    began_s, calls, longest_s = time.perf_counter(), 0, 0.0
    while time.perf_counter() - began_s < MOST_S:
        before_s = time.perf_counter()
        call(*arguments)
        longest_s = max(longest_s, time.perf_counter() - before_s)
        calls += 1
        if call.reports and not any(report.measuring for report in call.reports):
            break
    (report,) = call.reports
    decided_s = None if report.measuring else time.perf_counter() - began_s
    taken: dict[Callable[..., Any], list[float]] = {function: [], call: []}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for run, seconds in taken.items():
                before_s = time.perf_counter()
                for _ in range(CALLS):
                    run(*arguments)
                seconds.append((time.perf_counter() - before_s) / CALLS)
    eager_s, ours_s = (median(seconds) for seconds in taken.values())
    return {
        "decided_s": decided_s, "calls": calls, "longest_s": longest_s, "eager_s": eager_s, "ours_s": ours_s,
        "runs": report.runs, "reason": report.reason,
    }  # fmt: skip


def main() -> None:
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -5)
    print(json.dumps(measured(sys.argv[1])))


if __name__ == "__main__":
    main()
