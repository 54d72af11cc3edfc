"""Times a callable until the median of its time is known well enough, or a time budget ends.

Warm-up comes first; then batches, each long enough that reading the clock does not matter, until the confidence
interval of the median over batches lies within the tolerance. The interval is the distribution-free one between
two order statistics, whose coverage is binomial (David and Nagaraja, Order Statistics, 7.1): operation times are
skewed and have outliers, so no normal distribution is assumed. It is checked after every batch, so its true
coverage is somewhat below the one asked for.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from threadcast.core.errors import InvalidInput
from threadcast.core.gains import median_interval
from threadcast.core.measurement import Sample

BATCH_S = 2e-4
"""Shortest batch in seconds: some 4,000 times what reading `perf_counter_ns` costs (about 50 ns on Linux)."""

BATCHES_A_BUDGET = 100
"""Where more batches than these would fit into the budget, batches are made longer: more batches in the same time do
not narrow the interval faster, and all of them are stored."""

MIN_BATCHES = 3
"""Fewest batches, even if the budget is spent already, so that one outlier is not the median."""

FIRST_RUN_EXTRA_S = 0.05
"""Upper limit of the time that only a first run takes, to choose and compile a kernel and to map memory (below 35 ms
for oneDNN's convolutions of ResNet-18). If a first run takes longer than a batch by this much, a batch is one run."""

EMPTY_BATCHES = 3
"""Batches of an empty function that are counted for each pass of the counters; their median is subtracted."""

_MARGIN = 1.2  # factor on the wanted length, so that one guess is mostly enough
_MAX_GROWTH = 10
_MAX_RUNS = 1 << 20


@dataclass(frozen=True, slots=True)
class Goal:
    """The precision that a measured time must have, and how many seconds measuring may take (`budget_s`)."""

    tolerance: float = 0.02
    """Largest distance of either end of the confidence interval from the median, relative to the median."""
    budget_s: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise InvalidInput(f"tolerance={self.tolerance!r} must be between 0 and 1")
        if not 0 < self.budget_s < math.inf:
            raise InvalidInput(f"budget_s={self.budget_s!r} must be a positive number of seconds")

    @property
    def batch_s(self) -> float:
        """Seconds that a batch should last."""
        return max(BATCH_S, self.budget_s / BATCHES_A_BUDGET)


class CounterSource(Protocol):
    """Counts events of the threads that run the op."""

    @property
    def passes(self) -> int:
        """How many batches it takes to count every event: each counts some of them, in turn."""

    def start(self) -> None:
        """Begin to count."""

    def stop(self) -> Mapping[str, float | None]:
        """End counting; the counts since `start` by event name, None for an event that was not counted."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The samples, without warm-up; `converged` says whether the goal was reached within the budget."""

    samples: tuple[Sample, ...]
    converged: bool
    runs_a_batch: int
    elapsed_s: float
    """Seconds spent in all: warm-up, samples, and emptying the caches."""


def time_callable(
    run: Callable[[], object],
    *,
    goal: Goal | None = None,
    counters: CounterSource | None = None,
    reset: Callable[[], object] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Timing:
    """Time `run` and return for each batch the mean seconds and counts of one run.

    Counts are those of the batch less those of an equal batch of an empty function. There are at least as many samples
    as the counters have passes. `reset()` is called before every batch, untimed, to undo what the runs before it
    changed. `clock` returns nanoseconds. What `run` raises is not caught.
    """
    goal = goal or Goal()
    started = clock()

    def batch(length: int) -> tuple[float, Mapping[str, float | None]]:
        if reset:
            reset()
        return _run_batch(run, length, counters, clock)

    length = 1
    first_s, _ = batch(1)
    while first_s < goal.batch_s + FIRST_RUN_EXTRA_S:
        longer = next_length(length, batch(length)[0], goal.batch_s)
        if longer is None:
            break
        length = longer
    empty = _count_nothing(length, counters, clock) if counters else {}
    samples: list[Sample] = []
    ordered: list[float] = []
    needed = counters.passes if counters else 1
    while True:
        seconds, counts = batch(length)
        a_run = {
            name: None if count is None else max(0.0, count - empty.get(name, 0.0)) / length
            for name, count in counts.items()
        }
        samples.append(Sample(seconds / length, a_run))
        bisect.insort(ordered, samples[-1].seconds)
        elapsed_s = (clock() - started) * 1e-9
        settled = is_settled(ordered, goal)
        spent = elapsed_s >= goal.budget_s and len(samples) >= MIN_BATCHES
        if (settled or spent) and len(samples) >= needed:
            return Timing(tuple(samples), settled, length, elapsed_s)


def _run_batch(
    run: Callable[[], object], length: int, counters: CounterSource | None, clock: Callable[[], int]
) -> tuple[float, Mapping[str, float | None]]:
    """The seconds and the counts of `length` runs together."""
    if counters:
        counters.start()
    runs = itertools.repeat(None, length)
    begin = clock()
    for _ in runs:
        run()
    end = clock()
    return (end - begin) * 1e-9, counters.stop() if counters else {}


def _count_nothing(length: int, counters: CounterSource, clock: Callable[[], int]) -> dict[str, float]:
    """The counts of a batch in which nothing is run: what counting and calling cost."""
    found: dict[str, list[float]] = {}
    for _ in range(EMPTY_BATCHES * counters.passes):
        _, counts = _run_batch(lambda: None, length, counters, clock)
        for name, count in counts.items():
            if count is not None:
                found.setdefault(name, []).append(count)
    return {name: statistics.median(values) for name, values in found.items()}


def next_length(length: int, took_s: float, batch_s: float) -> int | None:
    """The number of runs of the next warm-up batch, after one of `length` runs took `took_s` seconds.

    None when that batch was long enough.
    """
    if took_s >= batch_s or length >= _MAX_RUNS:
        return None
    growth = min(_MARGIN * batch_s / took_s, _MAX_GROWTH) if took_s > 0 else _MAX_GROWTH
    return min(max(math.ceil(length * growth), length + 1), _MAX_RUNS)


def is_settled(ordered: Sequence[float], goal: Goal) -> bool:
    """Whether the interval of the median of these sorted seconds lies within the goal's tolerance."""
    interval = median_interval(ordered)
    if interval is None:
        return False
    middle = _median(ordered)
    return max(interval[1] - middle, middle - interval[0]) <= goal.tolerance * middle


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
