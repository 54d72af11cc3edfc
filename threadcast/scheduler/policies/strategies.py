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
from threadcast.scheduler.simulation.core_picker import CorePicker, without

ALL = frozenset({1, 2, 3, 4})

WINDOW = 32
"""Most ready ops, in order, that a decision looks at. In the paper seldom more than five ops are ready, so this only
limits the time of decisions on graphs far wider than its networks."""


class Strategies(Policy):
    """Runs each op at a predicted thread count, and ops side by side where that wastes no core, by four strategies.

    1. Each op runs with its own fastest thread count. 2. All ops of a kind run with the fastest count of the most
    time-consuming one of them. 3. While cores are idle, each ready op in order may start with one of its three fastest
    counts, fewest threads first.
       The count must fit the idle cores, and the op must end no later than the longest running op. If no op may start,
       or nothing runs, the most time-consuming ready op starts with its own count; where that does not fit, the policy
       waits. With 2, a count that differs by more than two threads from that of 2 is replaced by it.
    4. While an op holds all cores, the ready ops with the shortest times on one thread run on second hardware threads.

    Without 3, one op runs at a time, in order; without 1 and 2, each op runs on all cores. Where the paper says
    nothing: a count that was replaced by that of 2 must also fit and end in time. Strategy 4 starts only ops that end
    no later than the op beside them, as many as fit; it leaves cores with one hardware thread alone. InvalidInput
    for other numbers than 1 to 4 in `strategies`.
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
        """The thread count of each op by strategies 1 and 2."""
        self._chosen_s = [candidate.seconds for candidate in self.chosen]
        near = 2 in self.strategies
        self._candidates = candidates_of(problem, chosen, keep_near=near) if 3 in self.strategies else []
        self._fewest = [candidates[0].threads for candidates in self._candidates]
        self._fastest_s = [candidates[-1].seconds for candidates in self._candidates]
        self._one_thread_s = times.at(times.within(1)).tolist()
        self._cores = tuple(core.id for core in problem.machine.cores)
        self._second = tuple(core.id for core in problem.machine.cores if len(core.cpus) > 1)
        """Cores with a second hardware thread; of hybrid machines only the fast ones have it."""
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
        decision.idle, decision.hardware_thread = tuple(core for core in self._second if core not in busy), 1
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
        self.idle = without(self.idle, cores)
        self.ready.remove(op)
        if self.hardware_thread == 0:
            self.longest_s = max(candidate.seconds, self.longest_s or 0.0)


strategies_1 = partial(Strategies, strategies=(1,))
strategies_1_2 = partial(Strategies, strategies=(1, 2))
strategies_1_3 = partial(Strategies, strategies=(1, 3))
strategies_1_2_3 = partial(Strategies, strategies=(1, 2, 3))
