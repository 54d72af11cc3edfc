"""One process of `benchmarks/warmup.py`: it runs calls of a case in eager PyTorch or by threadcast, when told to.

    python benchmarks/warmup_process.py "U-Net" eager|threadcast

It writes a line of JSON when it is ready. For each line `[seconds, calls, untimed]` that it reads it runs calls until
these seconds or that number of calls are over, whichever comes first, after so many calls that are not timed; then it
writes the seconds of each call, and what threadcast says of itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from warmup_networks import CASES
from warmup_shapes import SEQUENCES, sequence

import threadcast
from threadcast.networks import Workload
from threadcast.runtime.optimized import Optimized

LEARNING_RATE = 1e-3


def eager(work: Workload, inference: bool) -> Callable[[], object]:
    """A call or a training step as people write it."""
    if inference:
        model = work.model.eval()

        def call() -> object:
            with torch.no_grad():
                return model(*work.inputs)

        return call
    optimizer, loss = _optimizer(work), work.loss
    target = work.target
    assert loss is not None
    assert target is not None

    def step() -> object:
        optimizer.zero_grad()
        value = loss(work.model(*work.inputs), target)
        torch.autograd.backward(value)
        optimizer.step()
        return value

    return step


def optimised(work: Workload, inference: bool) -> Any:
    """The same by threadcast; without example arguments, so that whatever it does happens in the calls."""
    if inference:
        return threadcast.optimize(work.model.eval())
    assert work.loss is not None
    return threadcast.optimize_training(work.model, work.loss, _optimizer(work))


def _optimizer(work: Workload) -> torch.optim.Optimizer:
    return torch.optim.SGD(work.model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def count_fallbacks() -> list[str]:
    """A list to which every call that threadcast leaves to PyTorch from now on adds why."""
    reasons: list[str] = []
    before = Optimized._as_before

    def counted(self: Optimized, reason: str, arguments: tuple[Any, ...]) -> Any:
        reasons.append(reason)
        return before(self, reason, arguments)

    Optimized._as_before = counted  # type: ignore[method-assign]
    return reasons


class Told:
    """The seconds of each call of one block, and what ran from which call on (index in the block)."""

    def __init__(self, call: Callable[[], object], reports: Callable[[], list[Any]]) -> None:
        self._call, self._reports = call, reports
        self._runs: str | None = None

    def block(self, seconds: float, calls: int | None) -> dict[str, Any]:
        taken: list[float] = []
        changes: list[tuple[int, str]] = []
        began_s = time.perf_counter()
        while True:
            before_s = time.perf_counter()
            self._call()
            after_s = time.perf_counter()
            taken.append(after_s - before_s)
            runs = ", ".join(report.runs for report in self._reports()) or "measuring"
            if runs != self._runs:
                changes.append((len(taken), runs))
                self._runs = runs
            if after_s - began_s >= seconds or len(taken) == calls:
                return {"seconds": taken, "changes": changes}


def described(reports: list[Any]) -> list[dict[str, Any]]:
    """The reports as JSON: what runs, why, and the gain of each contender over the best before it."""
    return [
        {
            "runs": report.runs, "reason": report.reason, "layout": str(report.layout), "fused": report.fused,
            "predicted_s": report.plan.makespan_s if report.plan else None,
            "gains": {name: verdict.gain for name, verdict in report.verdicts.items()},
        }
        for report in reports
    ]  # fmt: skip


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints must not get in between
    os.dup2(2, 1)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -5)
    title, who = sys.argv[1:]
    if title in SEQUENCES:
        step, call = sequence(title, who)
    else:
        case = next(case for case in CASES if case.title == title)
        work = case.load()
        step = optimised(work, case.inference) if who == "threadcast" else eager(work, case.inference)
        arguments = work.inputs if case.inference else (*work.inputs, work.target)
        call = partial(step, *arguments) if who == "threadcast" else step

    def reports() -> list[Any]:
        return step.reports if who == "threadcast" else []

    fallbacks = count_fallbacks()
    print(json.dumps({"pid": os.getpid()}), file=answers, flush=True)
    told = Told(call, reports)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for line in sys.stdin:
            seconds, calls, untimed = json.loads(line)
            for _ in range(untimed):
                call()
            answer = told.block(seconds, calls)
            answer |= {"reports": described(reports()), "warnings": sorted({str(one.message) for one in caught})}
            answer["fallbacks"] = len(fallbacks)
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
