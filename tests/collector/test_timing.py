"""The timing loop on a clock of our own: when it stops, what it returns, what it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from threadcast.collector.timing import (
    MIN_BATCHES,
    Goal,
    time_callable,
)
from threadcast.core.errors import InvalidInput


class Workbench:
    """A clock that only moves when the op runs or the caches are emptied; `runs` lists every run's seconds."""

    def __init__(self, durations_s: Iterable[float]) -> None:
        self.now_ns, self.runs = 0, list[float]()
        self.evictions = 0
        self._durations_s: Iterator[float] = iter(durations_s)

    def clock(self) -> int:
        return self.now_ns

    def run(self) -> None:
        self.runs.append(next(self._durations_s))
        self.now_ns += round(self.runs[-1] * 1e9)

    def evict(self) -> None:
        self.evictions += 1
        self.now_ns += 1_000_000


def forever(draw: Callable[[], float]) -> Iterator[float]:
    while True:
        yield draw()


def test_a_steady_op_is_settled_after_the_fewest_samples_that_bound_a_median():
    bench = Workbench(forever(lambda: 1e-5))
    timing = time_callable(bench.run, clock=bench.clock)
    assert timing.converged
    assert len(timing.samples) == 6
    assert [sample.seconds for sample in timing.samples] == pytest.approx([1e-5] * 6)


def test_batches_are_long_enough_for_the_clock():
    bench = Workbench(forever(lambda: 1e-6))
    timing = time_callable(bench.run, goal=Goal(budget_s=0.01), clock=bench.clock)
    assert timing.runs_a_batch * 1e-6 >= Goal(budget_s=0.01).batch_s


def test_warm_up_is_left_out():
    bench = Workbench([0.03, *[1e-3] * 100])
    timing = time_callable(bench.run, goal=Goal(budget_s=0.2), clock=bench.clock)
    assert max(sample.seconds for sample in timing.samples) == pytest.approx(1e-3)
    assert len(bench.runs) > timing.runs_a_batch * len(timing.samples)


def test_a_long_op_is_run_once_for_warm_up_and_once_a_batch():
    bench = Workbench(forever(lambda: 0.5))
    timing = time_callable(bench.run, goal=Goal(budget_s=10), clock=bench.clock)
    assert timing.runs_a_batch == 1
    assert len(bench.runs) == 1 + len(timing.samples)


def test_a_noisy_op_stops_at_the_budget_and_is_flagged():
    rng = np.random.default_rng(1)
    bench = Workbench(forever(lambda: rng.choice([1e-3, 2e-3])))
    timing = time_callable(bench.run, goal=Goal(budget_s=0.1), clock=bench.clock)
    assert not timing.converged
    assert 0.1 <= timing.elapsed_s < 0.15


def test_more_samples_are_taken_of_a_noisier_op():
    def samples(noise: float) -> int:
        rng = np.random.default_rng(3)
        bench = Workbench(forever(lambda: 3.0 * (1 + rng.normal(0, noise))))
        timing = time_callable(bench.run, goal=Goal(budget_s=250), clock=bench.clock)
        assert timing.converged
        return len(timing.samples)

    assert samples(0.001) < samples(0.03) < samples(0.06)


def test_a_spent_budget_still_gives_the_fewest_samples():
    bench = Workbench(forever(lambda: 3.0))
    timing = time_callable(bench.run, goal=Goal(budget_s=0.1), clock=bench.clock)
    assert len(timing.samples) == MIN_BATCHES
    assert not timing.converged


def test_every_batch_starts_from_a_reset_that_is_not_timed():
    bench = Workbench(forever(lambda: 1e-3))
    seen = []
    timing = time_callable(bench.run, reset=lambda: (seen.append(len(bench.runs)), bench.evict()), clock=bench.clock)
    assert [len(bench.runs) - timing.runs_a_batch * left for left in range(6, 0, -1)] == seen[-6:]
    assert timing.samples[0].seconds == pytest.approx(1e-3)


class Counters:
    """Counts `a_run` events for each run of a workbench, and `overhead` for counting itself, in `passes` passes."""

    def __init__(self, bench: Workbench, *, passes: int = 1, overhead: float = 0.0) -> None:
        self.passes, self._bench, self._overhead = passes, bench, overhead
        self._runs_before = self._starts = 0

    def start(self) -> None:
        self._runs_before = len(self._bench.runs)
        self._starts += 1

    def stop(self) -> dict[str, float | None]:
        value = 7.0 * (len(self._bench.runs) - self._runs_before) + self._overhead
        names = [f"events_{i}" for i in range(self.passes)] if self.passes > 1 else ["instructions"]
        counted = names[self._starts % self.passes]
        return {name: value if name == counted else None for name in names} | {"cycles": None}


def test_counts_are_a_run_without_what_counting_costs_and_a_counter_that_was_not_read_stays_none():
    bench = Workbench(forever(lambda: 1e-5))
    timing = time_callable(bench.run, counters=Counters(bench, overhead=1000.0), clock=bench.clock)
    assert timing.runs_a_batch > 1
    assert {dict(sample.counters)["instructions"] for sample in timing.samples} == {7.0}
    assert all(sample.counters["cycles"] is None for sample in timing.samples)


def test_there_are_samples_for_every_pass_of_the_counters():
    bench = Workbench(forever(lambda: 0.2))
    timing = time_callable(bench.run, goal=Goal(budget_s=0.1), counters=Counters(bench, passes=9), clock=bench.clock)
    assert len(timing.samples) == 9
    for i in range(9):
        assert sorted(sample.counters[f"events_{i}"] or 0 for sample in timing.samples) == [0] * 8 + [7]


@pytest.mark.parametrize("bad", [{"tolerance": 0}, {"tolerance": 1.0}, {"budget_s": 0}, {"budget_s": float("inf")}])
def test_an_impossible_goal_is_refused(bad):
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        Goal(**bad)
