"""Compares a plan with the framework's default: their steps are timed in turns on the real cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from threadcast.core import Trace
from threadcast.core.errors import InvalidInput
from threadcast.core.gains import PAIRS_AT_LEAST, Gain, gain_of
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.tuning.guard import Verdict, judge
from threadcast.threads.openmp import end_idle_workers

WARM_UP = 3
"""Rounds before the timed ones: the first steps fill allocators and kernel caches, and start thread teams."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds of every timed step by contender ("default", "plan" and the names of others), and the guard's verdict."""

    seconds: Mapping[str, tuple[float, ...]]
    verdict: Verdict
    trace: Trace
    """The trace of the plan's step of median length, of a few traced steps."""

    def median_s(self, name: str) -> float:
        """Median seconds of a step of the contender `name`."""
        return median(self.seconds[name])

    def gain(self, name: str) -> Gain:
        """How many times as fast as the default the contender `name` is, of which `verdict` is that of the plan."""
        return gain_of(self.seconds["default"], self.seconds[name])


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
    """Time `steps` rounds, each with one timed step of every contender, and judge plan against default.

    `default` runs one step as the framework would. `inputs` are the engines' inputs, as `Captured.bind` returns them;
    `engine` runs the plan, `others` are further engines by name. Each contender is warmed up first. In each round it
    runs one untimed step before the timed one, so that its caches are filled by its own step and not by another
    contender's. After its turn its idle thread teams are ended, because they would slow the others down
    (`threads.openmp`). `progress(done, total)` is called after each round. InvalidInput for fewer than 3 steps.
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
    return Comparison({name: tuple(steps_s) for name, steps_s in seconds.items()}, verdict, traces[len(traces) // 2])
