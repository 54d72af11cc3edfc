"""List scheduling of ops with fixed thread counts, in the order of a priority."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.problem import Launch, Policy, Problem, State
from threadcast.scheduler.problem.times import Integers
from threadcast.scheduler.simulation.core_picker import CorePicker, without

LOOK_AHEAD = 64
"""Most ready ops that one decision passes over, so that decisions stay quick on wide graphs."""


class Allotted(Policy):
    """Launches, in the order of `rank`, each ready op for which enough cores are idle.

    `allotment`: (n_ops,) positions in `problem.times.counts`. `rank`: a different number for each op. Ops that need
    more cores than are idle are passed over; with `in_order`, all ops behind them wait too. Two-phase methods (choose
    thread counts, then list-schedule) differ only in `allotment` and `rank`. InvalidInput for counts that are not
    offered.
    """

    name = "allotted"

    def __init__(self, problem: Problem, *, allotment: Integers, rank: Sequence[int], in_order: bool = False) -> None:
        super().__init__(problem)
        rows = np.arange(len(problem.graph))
        if len(allotment) != len(rows) or not np.isfinite(problem.times.at(allotment)).all():
            raise InvalidInput("the allotment must name an offered thread count for every op")
        self.rank = rank
        self._width = np.asarray(problem.times.counts)[allotment].tolist()
        self._spread = problem.times.spread[rows, allotment].tolist()
        self._in_order = in_order
        self._picker = CorePicker(problem.machine)

    def decide(self, state: State) -> Sequence[Launch]:
        launches: list[Launch] = []
        idle = state.idle
        for tried, op in enumerate(state.ready):
            if not idle or tried - len(launches) >= LOOK_AHEAD:
                break
            width = self._width[op]
            if width <= len(idle):
                cores = self._picker.pick(idle, width, spread=self._spread[op])
                launches.append(Launch(op, cores, width))
                idle = without(idle, cores)
            elif self._in_order:
                break
        return launches
