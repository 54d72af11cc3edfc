"""Steps of the framework's default and of a plan, timed by turns on the real cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from threadcast.core import Trace
from threadcast.core.errors import InvalidInput
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.tuning.guard import PAIRS_AT_LEAST, Verdict, judge
from threadcast.threads.openmp import end_idle_workers

WARM_UP = 3
"""Steps of each before timing: allocators, kernel caches and thread teams come into being in the first two."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds of every timed step by contender ("default", "plan" and whatever else ran), and what the guard keeps."""

    seconds: Mapping[str, tuple[float, ...]]
    verdict: Verdict
    trace: Trace
    """The plan's step of median length."""

    def median_s(self, name: str) -> float:
        """Median seconds a step of one contender."""
        return median(self.seconds[name])


def compare(
    engine: Engine,
    inputs: Sequence[Any],
    default: Callable[[], object],
    *,
    others: Mapping[str, Engine] | None = None,
    steps: int = 30,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Run `steps` rounds, each one step of every contender, and judge.

    `default` runs one step as the framework would; `inputs` are the engines', as `Captured.bind` gives them. Each
    contender is warmed up, and run once untimed in each round, so that it finds its caches as in a row of its
    own steps and not as another contender left them. Its idle thread teams end after its turn: left alone they slow
    the others down (`threads.openmp`). InvalidInput for fewer than 3 steps.
    """
    if steps < PAIRS_AT_LEAST:
        raise InvalidInput(f"steps={steps}: a comparison needs {PAIRS_AT_LEAST} or more of each")
    contenders: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {"default": (default, end_idle_workers)}
    for name, one in {"plan": engine, **(others or {})}.items():
        contenders[name] = (partial(one.run, inputs), one.rest)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(WARM_UP + steps):
        for name, (step, rest) in contenders.items():
            step()
            started_s = clock()
            step()
            took_s = clock() - started_s
            rest()
            if round_ >= WARM_UP:
                seconds[name].append(took_s)
        if progress and round_ >= WARM_UP:
            progress(round_ - WARM_UP + 1, steps)
    traces = sorted((engine.run_traced(inputs)[1] for _ in range(WARM_UP)), key=lambda trace: trace.makespan_s)
    verdict = judge(seconds["default"], seconds["plan"])
    return Comparison({name: tuple(taken) for name, taken in seconds.items()}, verdict, traces[len(traces) // 2])
