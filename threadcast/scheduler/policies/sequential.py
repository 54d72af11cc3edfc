"""One op at a time at the best single width: the most that tuning one global thread count can gain."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.scheduler.problem import Launch, Policy, Problem, State
from threadcast.scheduler.problem.uniform_width import best_width
from threadcast.scheduler.simulation.core_picker import CorePicker


class Sequential(Policy):
    """Runs one op at a time, in the order in which they become ready, each with at most `width` threads.

    Each op takes its largest offered count of at most `width`, a view one thread. `width` is the count with the least
    sum of all ops' times, among equals the smallest. `total_s` is that sum in seconds, and so the makespan. Unlike in
    "fifo", an op that is faster with one thread for each cache group runs that way.
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
