"""One op at a time at the best single width: what tuning one global thread count can reach."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core.errors import PlanError
from threadcast.scheduler.cores import CorePicker
from threadcast.scheduler.policies.base import Launch, Policy, Problem, State
from threadcast.scheduler.policies.team_policy import team_times
from threadcast.scheduler.times import Floats, Integers


class Sequential(Policy):
    """Ops in turn, in the order in which they become ready, every op with at most `width` threads.

    `width` is the thread count of the least sum of all ops' times, among equals the smallest, where each op takes
    its largest offered count of at most that, and a view one thread. `total_s` is that sum, which the makespan
    equals. Unlike in "fifo", an op whose curve prefers one thread a cache group is spread.
    """

    name = "sequential"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.width, positions, seconds = best_width(problem)
        self.total_s = float(seconds.sum())
        times, picker = problem.times, CorePicker(problem.machine)
        cores = tuple(core.id for core in problem.machine.cores)
        self._cores = [
            picker.pick(cores, times.counts[at], spread=bool(times.spread[op, at]))
            for op, at in enumerate(positions.tolist())
        ]

    def decide(self, state: State) -> Sequence[Launch]:
        if state.running or not state.ready:
            return ()
        op = state.ready[0]
        return (Launch(op, self._cores[op], len(self._cores[op])),)


def best_width(problem: Problem) -> tuple[int, Integers, Floats]:
    """Return `Sequential`'s width, and each op's position in `times.counts` and seconds there."""
    found: list[tuple[int, Integers, Floats]] = []
    for width in problem.times.counts:
        try:
            found.append((width, *team_times(problem, width)))
        except PlanError:  # too narrow for some op; the widest count never is
            continue
    return min(found, key=lambda setting: float(setting[2].sum()))
