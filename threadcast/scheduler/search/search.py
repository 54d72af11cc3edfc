"""Finds short schedules: list scheduling of many allotments, then local search until the budget ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.compiled import COMPILED, UNCOMPILED
from threadcast.scheduler.kernels.dispatching import dispatch
from threadcast.scheduler.kernels.insertion import fill_levels
from threadcast.scheduler.kernels.instance import Floats, Instance, Ints
from threadcast.scheduler.search.allotments import balanced, widest_within
from threadcast.scheduler.search.annealing import annealed, random_state
from threadcast.scheduler.search.solution import Solution

LIMITS = (1.0, 1.07, 1.2, 1.45)
"""Limits on the critical path, over the lower bound, for which allotments are made at first."""
FINER = (0.93, 0.96, 0.98, 1.02, 1.04, 1.08)
"""Further limits to try for the best allotments, relative to their limits."""
REFINED = 4
"""Number of best allotments that are refined."""

ANNEALED_OPS = 3000
"""Most ops for which schedules are annealed; for more, rebuilding a schedule takes long and moves gain little."""
ANNEALING_S = 3.0
"""Seconds from which the number of moves is computed by PER_OP_S and PER_PAIR_S. Moves really take about half of that
on one core, because each is given up halfway in the mean."""
PER_OP_S, PER_PAIR_S = 50e-9, 0.2e-9
"""Seconds of `insert` for n ops: n times the first plus n * n times the second (AMD EPYC, 60 and 1,000 ops)."""
MOST_MOVES, MOVES_A_PAIR = 1_000_000, 2_000
"""Most moves in all, and most moves for each pair of ops."""
TRIES, SMALL_TRIES, SMALL = 2, 4, 100
"""Number of start schedules that are annealed, and the number for graphs of at most SMALL ops."""
RETURNED = 8
"""Most schedules that a search returns."""


class _Start(NamedTuple):
    """A schedule and the limits it was made with: on widths (`widest`, with their `number`) and on the critical path.

    `limit` is the limit on the critical path over the lower bound, 0 where there was none.
    """

    solution: Solution
    number: int
    widest: Ints
    limit: float


class Search:
    """Looks for short schedules of `instance` until `deadline_s` of `clock`, or until one is as short as `bound_s`.

    `given` are further choices of thread counts to try. The same instance and seed give the same schedules if the
    deadline does not cut the search short.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        bound_s: float,
        given: Sequence[Ints] = (),
        seed: int = 0,
        deadline_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instance = instance
        self._bound_s, self._given = bound_s, given
        self._enough_s = bound_s * (1 + 1e-9)
        self._deadline_s, self._clock = deadline_s, clock
        self._random = np.random.default_rng(seed)
        self._level: Floats = np.empty(instance.n_ops)
        self._best: Solution | None = None

    def run(self) -> list[Solution]:
        """Return the schedules found, the shortest first."""
        starts = self._starts()
        found = self._anneal(starts) if self.instance.n_ops <= ANNEALED_OPS else []
        shortest: dict[float, Solution] = {}
        for solution in sorted([*found, *starts], key=lambda solution: solution.makespan_s):
            shortest.setdefault(solution.makespan_s, solution)
        return list(shortest.values())[:RETURNED]

    def _is_over(self) -> bool:
        if self._best is None:
            return False
        return self._best.makespan_s <= self._enough_s or self._clock() >= self._deadline_s

    def _starts(self) -> list[Solution]:
        """List-schedule many allotments, then some around the best; the shortest for each set of limits on widths."""
        tried: list[_Start] = []
        for number, widest in enumerate(self._widest()):
            if self._is_over():
                break
            tried.append(_Start(self._dispatched(widest_within(self.instance, widest)), number, widest, 0.0))
            for limit in LIMITS:
                if self._is_over() and len(tried) > 1:  # all cores to each op alone can be far from good
                    break
                choice = balanced(self.instance, self._bound_s * limit, widest)
                tried.append(_Start(self._dispatched(choice), number, widest, limit))
        tried.sort(key=_makespan_s)
        for solution, number, widest, limit in tried[:REFINED]:
            tried += [_Start(self._dispatched(solution.choice, adapt=a), number, widest, limit) for a in (False, True)]
            for factor in FINER if limit else ():
                choice = balanced(self.instance, self._bound_s * limit * factor, widest)
                for adapt in (False, True):
                    if self._is_over():
                        break
                    tried.append(_Start(self._dispatched(choice, adapt=adapt), number, widest, limit * factor))
        nothing = np.empty(0, dtype=np.int64)
        for i, choice in enumerate(self._given):
            tried += [_Start(self._dispatched(choice, adapt=a), -1 - i, nothing, 0.0) for a in (False, True)]
        shortest: dict[int, Solution] = {}
        for start in sorted(tried, key=_makespan_s):
            shortest.setdefault(start.number, start.solution)
        return list(shortest.values())

    def _widest(self) -> list[Ints]:
        """Limits on the ops' widths, each the same for all ops."""
        n, cores = self.instance.n_ops, self.instance.cores
        uniform = {max(1, round(cores / 2 ** (k / 2))) for k in range(2 * cores.bit_length())} | {1, cores}
        return [np.full(n, width, dtype=np.int64) for width in sorted(uniform, reverse=True)]

    def _dispatched(self, choice: Ints, *, adapt: bool = True) -> Solution:
        """The list schedule by falling level."""
        instance = self.instance
        fill_levels(instance.order, instance.successors, instance.times(choice), self._level)
        start, choice = np.empty(instance.n_ops), choice.copy()
        solution = Solution(choice, start, float(dispatch(instance, -self._level, adapt, choice, start)))
        if self._best is None or solution.makespan_s < self._best.makespan_s:
            self._best = solution
        return solution

    def _anneal(self, starts: list[Solution]) -> list[Solution]:
        """Anneal the shortest starts, one after the other."""
        n = self.instance.n_ops
        moves_s = ANNEALING_S / (1 if COMPILED else UNCOMPILED)
        moves = min(int(moves_s / (n * (PER_OP_S + PER_PAIR_S * n))), MOST_MOVES, MOVES_A_PAIR * n * n)
        random = random_state(self._random)
        tries = min(len(starts), SMALL_TRIES if n <= SMALL else TRIES)
        found: list[Solution] = []
        for start in starts[:tries]:
            solution = annealed(
                self.instance,
                start,
                moves=moves // tries,
                random=random,
                enough_s=self._enough_s,
                is_over=self._is_over,
            )
            found.append(solution)
            if self._best is None or solution.makespan_s < self._best.makespan_s:
                self._best = solution
        return found


def _makespan_s(start: _Start) -> float:
    return start.solution.makespan_s
