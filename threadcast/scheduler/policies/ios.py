"""IOS: divides the graph into stages of groups that run side by side, by dynamic programming."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.policies.stage_cost import Stage
from threadcast.scheduler.policies.stage_search import CANDIDATES, GROUP_OPS, GROUPS, stages_of
from threadcast.scheduler.problem import Launch, Policy, Problem, State
from threadcast.scheduler.simulation.core_picker import CorePicker, without


class Ios(Policy):
    """Runs stages of least predicted time one after the other, with a barrier between them.

    The ops of a stage that depend on each other form a group and run in sequence. The groups of a stage run side by
    side, each on cores of its own; the cores are divided such that the stage's predicted time is least. An op takes its
    fastest offered count that fits its group's cores. `stages` holds for each stage its groups, and for each group its
    ops in the order in which they run. `predicted_s` is the sum of the stages' times, with every op at its better
    affinity.

    Source: Ding, Zhu, Jia, Pekhimenko and Han, "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021,
    section 4 (4.1 dynamic programming over endings, 4.3 pruning: at most `group_ops` ops in a group and `groups`
    groups, 3 and 8 there). Differences: stage times are predicted, not measured; groups have cores instead of streams;
    ops are not merged into one, because that changes the graph; parts that would need more than `candidates` candidate
    stages are divided level by level (`stage_search`), where the paper's search takes hours.
    """

    name = "ios"

    def __init__(
        self, problem: Problem, *, group_ops: int = GROUP_OPS, groups: int = GROUPS, candidates: int = CANDIDATES
    ) -> None:
        super().__init__(problem)
        for what, value in (("group_ops", group_ops), ("groups", groups), ("candidates", candidates)):
            if value < 1:
                raise InvalidInput(f"{what}={value}: at least 1 is needed")
        found = stages_of(problem, group_ops=group_ops, groups=groups, candidates=candidates)
        self.stages = tuple(tuple(group.ops for group in stage.groups) for stage in found)
        self.predicted_s = float(sum(stage.seconds for stage in found))
        self._picker = CorePicker(problem.machine)
        n = len(problem.graph)
        self.rank = [0] * n
        self._place: list[tuple[int, int]] = [(0, 0)] * n  # stage and group
        self._launch: dict[int, Launch] = {}
        for number, stage in enumerate(found):
            cores = self._dealt(stage)
            for group, on in zip(stage.groups, cores):
                for op in group.ops:
                    self.rank[op] = len(self._launch)
                    self._place[op] = (number, on[0])
                    self._launch[op] = self._launched(op, on, group.cores)

    def decide(self, state: State) -> Sequence[Launch]:
        place = self._place
        busy = {place[at.op] for at in state.running}
        current = min([stage for stage, _ in busy] + [place[op][0] for op in state.ready[:1]])
        launches: list[Launch] = []
        for op in state.ready:
            if place[op][0] != current:
                break
            if place[op] not in busy:
                busy.add(place[op])
                launches.append(self._launch[op])
        return launches

    def _dealt(self, stage: Stage) -> list[tuple[int, ...]]:
        """Cores of each group: all for a single one; else the widest groups choose first."""
        idle = tuple(core.id for core in self.problem.machine.cores)
        if len(stage.groups) == 1:
            return [idle]
        found: dict[int, tuple[int, ...]] = {}
        for i in sorted(range(len(stage.groups)), key=lambda i: -stage.groups[i].cores):
            group = stage.groups[i]
            spread = all(self._fastest(op, group.cores)[1] for op in group.ops)
            found[i] = self._picker.pick(idle, group.cores, spread=spread)
            idle = without(idle, found[i])
        return [found[i] for i in range(len(stage.groups))]

    def _launched(self, op: int, cores: tuple[int, ...], limit: int) -> Launch:
        count, spread = self._fastest(op, limit)
        return Launch(op, self._picker.pick(cores, count, spread=spread), count)

    def _fastest(self, op: int, limit: int) -> tuple[int, bool]:
        """The fastest offered count of at most `limit`, and whether its time holds for one thread a cache group."""
        times = self.problem.times
        at = int(np.argmin(times.seconds[op, : bisect_right(times.counts, limit)]))
        return times.counts[at], bool(times.spread[op, at])
