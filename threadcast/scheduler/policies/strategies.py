"""The four strategies of Liu et al. 2018, III-D, alone or together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import islice

import numpy as np

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.policies.concurrency import all_cores, per_kind, per_op
from threadcast.scheduler.policies.corun import Candidate, candidates_of, fitting
from threadcast.scheduler.problem import Launch, Policy, Problem, Running, State
from threadcast.scheduler.simulation.core_picker import CorePicker

ALL = frozenset({1, 2, 3, 4})

WINDOW = 32
"""Ready ops, in order, that a decision looks at. The paper saw seldom more than five ready, so this only bounds the
time of decisions on graphs far wider than its networks."""


class Strategies(Policy):
    """Predicted thread counts for each op, and co-running ops where that wastes no core.

    1. Each op runs with its own fastest thread count.
    2. All ops of a kind run with the fastest count of the most time-consuming one of them.
    3. While cores idle, each ready op in order may start with one of its three fastest counts that fits the idle
       cores and takes no longer than the longest of the running ops still needs, fewest threads first. If none
       may, or nothing runs, the most time-consuming ready op starts with its own count, or is waited for where
       that does not fit. With 2, a count more than two threads away from that of 2 gives way to it.
    4. While an op holds all cores, ready ops of the shortest time on one thread run on second hardware threads.

    Without 3, one op runs at a time, in order; without 1 and 2, each on all cores. Where the paper says
    nothing: a count that gave way to that of 2 must fit and not outlast the others as well; strategy 4 starts only what
    takes no longer than the op beside it, as many as fit; it does nothing where cores have one hardware thread.
    """

    name = "strategies"

    def __init__(self, problem: Problem, *, strategies: Collection[int] = ALL) -> None:
        super().__init__(problem)
        self.strategies = frozenset(strategies)
        if not self.strategies <= ALL:
            raise InvalidInput(f"strategies={sorted(self.strategies)}: choose from 1, 2, 3 and 4")
        self.name = "strategies_" + "_".join(map(str, sorted(self.strategies))) if self.strategies != ALL else self.name
        choose = per_kind if 2 in self.strategies else per_op if 1 in self.strategies else all_cores
        chosen, times, rows = choose(problem), problem.times, np.arange(len(problem.graph))
        threads = np.asarray(times.counts)[chosen]
        points = zip(threads.tolist(), times.at(chosen).tolist(), times.spread[rows, chosen].tolist())
        self.chosen = [Candidate(*point) for point in points]
        """What strategies 1 and 2 give each op."""
        self._chosen_s = [candidate.seconds for candidate in self.chosen]
        near = 2 in self.strategies
        self._candidates = candidates_of(problem, chosen, keep_near=near) if 3 in self.strategies else []
        self._fewest = [candidates[0].threads for candidates in self._candidates]
        self._fastest_s = [candidates[-1].seconds for candidates in self._candidates]
        self._one_thread_s = times.at(times.within(1)).tolist()
        self._cores = tuple(core.id for core in problem.machine.cores)
        self._hyper_threading = 4 in self.strategies and problem.machine.threads_per_core > 1
        self._picker = CorePicker(problem.machine)

    def decide(self, state: State) -> Sequence[Launch]:
        ready = list(islice(state.ready, WINDOW))
        if not ready:
            return ()
        first = [at for at in state.running if at.hardware_thread == 0]
        left_s = [max(0.0, at.finish_s - state.now_s) for at in first]
        decision = _Decision(self._picker, ready, self._idle(state, first), max(left_s, default=None))
        if 3 in self.strategies:
            self._co_run(decision)
        elif decision.longest_s is None:
            decision.launch(ready[0], self.chosen[ready[0]])
        if self._hyper_threading:
            self._beside(decision, state.running, first)
        return decision.launches

    def _idle(self, state: State, first: Sequence[Running]) -> tuple[int, ...]:
        """Cores whose first hardware thread is free: an op of strategy 4 that outlived its host keeps none away."""
        if not self._hyper_threading or len(first) == len(state.running):
            return state.idle
        busy = {core for at in first for core in at.cores}
        return tuple(core for core in self._cores if core not in busy)

    def _co_run(self, decision: _Decision) -> None:
        while decision.idle and decision.ready:
            if decision.longest_s is not None:
                self._fill(decision, decision.longest_s)
            if not decision.idle or not decision.ready:
                return
            longest = max(decision.ready, key=self._chosen_s.__getitem__)
            if self.chosen[longest].threads > len(decision.idle):
                return
            decision.launch(longest, self.chosen[longest])

    def _fill(self, decision: _Decision, within_s: float) -> None:
        """Start every ready op that has a candidate for the idle cores and this time."""
        idle = len(decision.idle)
        for op in tuple(decision.ready):
            if self._fewest[op] <= idle and self._fastest_s[op] <= within_s:
                found = fitting(self._candidates[op], idle=idle, within_s=within_s)
                if found:
                    decision.launch(op, found)
                    idle = len(decision.idle)

    def _beside(self, decision: _Decision, running: Sequence[Running], first: Sequence[Running]) -> None:
        """Strategy 4: fill the second hardware threads beside an op that holds all cores."""
        holders = [at.cores for at in first] + [launch.cores for launch in decision.launches]
        if len(holders) != 1 or len(holders[0]) != len(self._cores) or decision.longest_s is None:
            return
        busy = {core for at in running if at.hardware_thread for core in at.cores}
        decision.idle, decision.hardware_thread = tuple(core for core in self._cores if core not in busy), 1
        for op in sorted(decision.ready, key=lambda op: self._one_thread_s[op]):
            if not decision.idle:
                return
            found = self.chosen[op]
            if found.threads <= len(decision.idle) and found.seconds <= decision.longest_s:
                decision.launch(op, found)


class _Decision:
    """What one decision has launched so far, and what that leaves."""

    def __init__(self, picker: CorePicker, ready: list[int], idle: tuple[int, ...], longest_s: float | None) -> None:
        self.ready = ready
        self.idle = idle
        self.longest_s = longest_s
        """Seconds that the longest op on first hardware threads still needs; None where none runs."""
        self.hardware_thread = 0
        self.launches: list[Launch] = []
        self._picker = picker

    def launch(self, op: int, candidate: Candidate) -> None:
        cores = self._picker.pick(self.idle, candidate.threads, spread=candidate.spread)
        self.launches.append(Launch(op, cores, candidate.threads, self.hardware_thread))
        taken = set(cores)
        self.idle = tuple(core for core in self.idle if core not in taken)
        self.ready.remove(op)
        if self.hardware_thread == 0:
            self.longest_s = max(candidate.seconds, self.longest_s or 0.0)


strategies_1 = partial(Strategies, strategies=(1,))
strategies_1_2 = partial(Strategies, strategies=(1, 2))
strategies_1_3 = partial(Strategies, strategies=(1, 3))
strategies_1_2_3 = partial(Strategies, strategies=(1, 2, 3))
