"""Compares a plan with the framework's default: their steps are timed in turns on the real cores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from threadcast.collector.busy import LoadWatch
from threadcast.core import Trace
from threadcast.core.errors import InvalidInput
from threadcast.core.gains import CONFIDENCE, PAIRS_AT_LEAST, Gain, gain_of
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.tuner.guard import Verdict, judge
from threadcast.threads.openmp import end_idle_workers

WARM_UP = 3
"""Rounds before the timed ones: the first steps fill allocators and kernel caches, and start thread teams."""

DISTURBED_CONFIDENCE = 0.999
"""Confidence of intervals of gains where others used the CPUs: what disturbs one step often disturbs those next to it
too, so that as many pairs tell less. A convention."""

FEWEST_ROUNDS = 11
"""Rounds that are run however long they take: as many pairs have a median with an interval of 99.9 %."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds of every timed step by contender ("default", "plan" and the names of others), and the guard's verdict."""

    seconds: Mapping[str, tuple[float, ...]]
    verdict: Verdict
    trace: Trace
    """The trace of the plan's step of median length, of a few traced steps."""
    disturbed: bool = False
    """Whether others used the CPUs in rounds that count; then intervals of gains are of `DISTURBED_CONFIDENCE`."""
    repeated: int = 0
    """Rounds that were run again because others had used the CPUs."""

    def median_s(self, name: str) -> float:
        """Median seconds of a step of the contender `name`."""
        return median(self.seconds[name])

    @property
    def interval(self) -> str:
        """What the intervals of gains are, in words."""
        return f"{100 * _confidence(self.disturbed):g} % interval"

    def gain(self, name: str) -> Gain:
        """How many times as fast as the default the contender `name` is, of which `verdict` is that of the plan."""
        return gain_of(self.seconds["default"], self.seconds[name], confidence=_confidence(self.disturbed))


def compare(
    engine: Engine,
    inputs: Sequence[Any],
    default: Callable[[], object],
    *,
    others: Mapping[str, Engine] | None = None,
    steps: int = 30,
    watch: LoadWatch | None = None,
    most_s: float = math.inf,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time `steps` rounds, each with one timed step of every contender, and judge plan against default.

    `default` runs one step as the framework would. `inputs` are the engines' inputs, as `Captured.bind` returns them;
    `engine` runs the plan, `others` are further engines by name. Each contender is warmed up first. In each round it
    runs one untimed step before the timed one, so that its caches are filled by its own step and not by another
    contender's. After its turn PyTorch's idle threads are ended, because they would slow the others down
    (`threads.openmp`). Rounds that others disturbed, as `watch` tells, are run again, up to `steps` of them, and count
    only where there are too few others. After `most_s` seconds no more rounds begin once there are `FEWEST_ROUNDS`.
    `progress(done, total)` is called after each round. InvalidInput
    for fewer than 3 steps.
    """
    if steps < PAIRS_AT_LEAST:
        raise InvalidInput(f"steps={steps}: a comparison needs {PAIRS_AT_LEAST} or more of each")
    contenders: dict[str, Callable[[], object]] = {"default": default}
    for name, one in {"plan": engine, **(others or {})}.items():
        contenders[name] = partial(one.run, inputs)
    began_s = clock()
    rounds: dict[bool, list[dict[str, float]]] = {False: [], True: []}  # by whether others disturbed them
    for round_ in range(WARM_UP + 2 * steps):
        took_s = {}
        for name, step in contenders.items():
            step()
            started_s = clock()
            step()
            took_s[name] = clock() - started_s
            end_idle_workers()
        load = watch.recent() if watch else None
        if round_ >= WARM_UP:
            rounds[load is not None and load.disturbs].append(took_s)
            done = sum(map(len, rounds.values()))
            if progress:
                progress(min(done, steps), steps)
            late = clock() - began_s >= most_s and done >= min(steps, FEWEST_ROUNDS)
            if len(rounds[False]) == steps or late:
                break
    disturbed = len(rounds[False]) < min(steps, FEWEST_ROUNDS)
    counted = rounds[False] + (rounds[True] if disturbed else [])
    seconds = {name: tuple(one[name] for one in counted) for name in contenders}
    traces = sorted((engine.run_traced(inputs)[1] for _ in range(WARM_UP)), key=lambda trace: trace.makespan_s)
    verdict = judge(seconds["default"], seconds["plan"], confidence=_confidence(disturbed))
    return Comparison(seconds, verdict, traces[len(traces) // 2], disturbed, len(rounds[True]))


def _confidence(disturbed: bool) -> float:
    return DISTURBED_CONFIDENCE if disturbed else CONFIDENCE
