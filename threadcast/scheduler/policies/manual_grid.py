"""The best setting of two global thread counts, inter-op and intra-op, as a user could find it by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.interference.core_sharing import Interference
from threadcast.scheduler.policies.best_setting import fastest_setting
from threadcast.scheduler.policies.uniform import Uniform, teams_of
from threadcast.scheduler.problem import Launch, Policy, Problem, State

INTER = (1, 2, 4, 8)
"""Numbers of ops at a time to try. Liu et al. 2018 try 1, 2 and 4 (Table I); 8 is for graphs with more branches."""


class ManualGrid(Policy):
    """The best of the grid `inter` x `intra` of `Uniform`, found with the simulator.

    `intra` defaults to the powers of two up to the number of cores, and a quarter, half and all of the cores; the best
    settings by hand in Liu et al. 2018, IV are among such. `setting` is the best (inter, intra). Without
    `oversubscribed`, settings with more threads in all than the machine has hardware threads are left out, and those in
    which a team uses a hardware thread that one of its cores has not: three teams of two cores do not fit on three with
    two each. With it, these take turns on the cores, and their plans name hardware threads that are not there.
    """

    name = "manual_grid"

    def __init__(
        self,
        problem: Problem,
        *,
        inter: Sequence[int] = INTER,
        intra: Sequence[int] | None = None,
        oversubscribed: bool = True,
        interference: Interference | None = None,
    ) -> None:
        super().__init__(problem)
        cores = len(problem.machine)
        widths = _powers_and_parts(cores) if intra is None else sorted(set(intra))
        if not inter or not widths or min(inter) < 1 or min(widths) < 1:
            raise InvalidInput(f"inter={tuple(inter)}, intra={tuple(widths)}: give at least one of each, 1 or more")
        most = math.inf if oversubscribed else sum(len(core.cpus) for core in problem.machine.cores)
        settings = [
            (count, width)
            for count in sorted(set(inter))
            for width in widths
            if oversubscribed or (count * width <= most and _fits(problem, count, width))
        ]
        if not settings:
            raise InvalidInput(f"inter={tuple(inter)}, intra={tuple(widths)}: none fits the {most} hardware threads")
        self._best = fastest_setting(
            problem,
            settings,
            lambda setting: Uniform(problem, inter=setting[0], intra=setting[1]),
            interference=interference,
        )
        self.setting = (self._best.inter, self._best.intra)

    def decide(self, state: State) -> Sequence[Launch]:
        return self._best.decide(state)


def _fits(problem: Problem, inter: int, intra: int) -> bool:
    """Whether all cores have the hardware threads that their teams use."""
    cores = problem.machine.cores
    if inter * intra <= len(cores):  # one to a core
        return True
    own = {core.id: len(core.cpus) for core in cores}
    teams = teams_of(problem, inter, intra)
    each = -(-intra // len(teams[0].cores))
    return all(team.hardware_thread + each <= own[core] for team in teams for core in team.cores)


def _powers_and_parts(cores: int) -> list[int]:
    powers = {1 << i for i in range(cores.bit_length())}
    return sorted(powers | {max(1, cores // 4), max(1, cores // 2), cores})
