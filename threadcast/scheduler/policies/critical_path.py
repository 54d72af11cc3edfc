"""Critical path first on executors of equal width: the scheduler of Graphi."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.interference.core_sharing import Interference
from threadcast.scheduler.policies.best_setting import fastest_setting
from threadcast.scheduler.policies.team_policy import Team, TeamPolicy
from threadcast.scheduler.problem import Launch, Problem, State
from threadcast.scheduler.problem.levels import levels, rank_by_level
from threadcast.scheduler.simulation.core_picker import teams

TINY_S = 10e-6
"""Most seconds on one thread of an op for the light executor: waking a team takes about as long as such an op. Tang et
al. 2018 give no figure; this one is not tuned."""

LOOK_AHEAD = 64
"""Most ready ops that are searched for a tiny one, so that decisions stay quick on wide graphs."""


class CriticalPath(TeamPolicy):
    """Launches the ready op of the highest level on the first free executor; all executors have equal width.

    An op's level is the longest path from it to the end of the graph, with times at the executors' width. With
    `executors` None, the number of executors is the best of the powers of two, the number of cache groups and the
    number of cores, found by simulation. `light_executor` reserves the last core for ops of at most `tiny_s` seconds on
    one thread; these run on other executors only while it is busy. Source: Tang et al. 2018, 4.2 to 4.4 and section 5.
    Graphi also reserves a core for its scheduler; for that, pass a machine without this core.
    """

    name = "critical_path"

    def __init__(
        self,
        problem: Problem,
        *,
        executors: int | None = None,
        light_executor: bool = False,
        tiny_s: float = TINY_S,
        interference: Interference | None = None,
    ) -> None:
        order = [core for group in problem.machine.groups for core in group]
        if light_executor and len(order) < 2:
            raise InvalidInput("the light executor needs a core of its own; this machine has one core")
        machine = problem.machine.limited_to(order[:-1]) if light_executor else problem.machine
        if executors is None:
            settings = [(n, len(teams(machine, n)[0])) for n in executor_counts(len(machine), len(machine.groups))]
            best = fastest_setting(
                problem,
                settings,
                lambda setting: CriticalPath(
                    problem, executors=setting[0], light_executor=light_executor, tiny_s=tiny_s
                ),
                interference=interference,
                by_bounds=not light_executor,
            )
            executors = len(best.teams)
        elif not 1 <= executors <= len(machine):
            raise InvalidInput(f"executors={executors}: from 1 to the {len(machine)} cores there are for them")
        cores = teams(machine, executors)
        super().__init__(problem, [Team(team) for team in cores], threads=len(cores[0]))
        self.level = levels(problem.graph, self.seconds)
        self.rank = rank_by_level(self.level)
        self._light_core = order[-1] if light_executor else None
        self._tiny = _tiny(problem, tiny_s) if light_executor else bytes(len(problem.graph))

    def decide(self, state: State) -> Sequence[Launch]:
        if self._light_core is None or self._light_core not in state.idle:
            return super().decide(state)
        free = self.free_teams(state)
        team = next(free, None)
        launches: list[Launch] = []
        light_is_free = True
        for tried, op in enumerate(state.ready):
            if light_is_free and self._tiny[op]:
                launches.append(Launch(op, (self._light_core,), 1))
                light_is_free = False
            elif team is not None:
                launches.append(self.launch(op, team))
                team = next(free, None)
            if team is None and (not light_is_free or tried >= LOOK_AHEAD):
                break
        return launches


def executor_counts(cores: int, groups: int) -> list[int]:
    """Return the numbers of executors to try: powers of two up to `cores`, `groups` and `cores`."""
    return sorted({1 << i for i in range(cores.bit_length())} | {groups, cores})


def _tiny(problem: Problem, tiny_s: float) -> bytes:
    """One byte an op: whether the light executor may take it."""
    times = problem.times
    one_thread = times.counts[0] == 1
    tiny = times.seconds[:, 0] <= tiny_s if one_thread else np.zeros(len(problem.graph), dtype=bool)
    return tiny.astype(np.uint8).tobytes()
