"""CPA and MCPA: widen the critical path until it balances the area, then list-schedule by level."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.instance import Instance
from threadcast.scheduler.policies.allotted import Allotted
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels, precedence_levels, rank_by_level
from threadcast.scheduler.problem.times import Integers


class Cpa(Allotted):
    """Chooses thread counts by CPA, then launches the ready op of the highest level first.

    Every op begins at its narrowest offered width. While the critical path is longer than all core-seconds over the
    cores, the op on the path whose seconds over width fall most gets its next useful width; among equals the op of
    lower position. This ends early where no op on the path can be widened. `allotment`: (n_ops,) positions in
    `problem.times.counts`.

    Source: Radulescu and van Gemund 2001, "A low-cost approach towards mixed task and data parallel scheduling",
    section 3. Difference: an op goes to its next useful width, because curves are jagged; in the paper it gets one more
    processor. As in the paper, an op that needs more cores than are idle keeps later ops waiting, so none overtakes it.
    Without numba (extra `plan`) this takes about 100 times as long.
    """

    name = "cpa"

    def __init__(self, problem: Problem) -> None:
        n = len(problem.graph)
        no_limit = np.array([n * problem.times.counts[-1]])
        self._allot(problem, np.zeros(n, dtype=np.int64), no_limit)

    def _allot(self, problem: Problem, depth: Integers, spare: Integers) -> None:
        """Choose the counts; ops of `depth` i together get at most `spare[i]` cores more than at their narrowest."""
        from threadcast.scheduler.kernels.cpa_loop import grow  # brings numba along

        instance = Instance.of(problem)
        choice = np.zeros(instance.n_ops, dtype=np.int64)
        grow(instance, depth, spare.copy(), choice)
        self.allotment: Integers = instance.positions(choice).astype(np.int64)
        level = levels(problem.graph, problem.times.at(self.allotment))
        Allotted.__init__(self, problem, allotment=self.allotment, rank=rank_by_level(level), in_order=True)


class Mcpa(Cpa):
    """CPA in which the ops of a precedence level together get no more cores than there are.

    The level of an op is the largest number of ops before it on any path. Ops of a level can run side by side, but not
    if they become too wide together. A level with more ops than cores is not widened at all. Source: Bansal, Kumar and
    Singh 2006, "An improved two-step algorithm for task and data parallel scheduling in distributed memory machines".
    """

    name = "mcpa"

    def __init__(self, problem: Problem) -> None:
        depth = precedence_levels(problem.graph)
        narrowest = np.bincount(depth, np.asarray(problem.times.counts)[problem.times.within(0)]).astype(np.int64)
        self._allot(problem, depth, len(problem.machine) - narrowest)
