"""The base of policies with fixed teams of cores; each team runs one op at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from threadcast.scheduler.problem import Launch, Policy, Problem, State
from threadcast.scheduler.problem.times import Floats
from threadcast.scheduler.problem.uniform_width import team_times


class Team(NamedTuple):
    """Cores that run one op at a time, on the hardware threads from `hardware_thread` on."""

    cores: tuple[int, ...]
    hardware_thread: int = 0


class TeamPolicy(Policy):
    """Launches the ready ops, in order, on the free teams, in order.

    An op whose curve does not reach the team's size runs on as many of the team's cores as the curve offers; a view
    runs on one core. A subclass may set `rank`.
    """

    def __init__(self, problem: Problem, teams: Sequence[Team], *, threads: int) -> None:
        """`threads`: most threads of an op; if they exceed the team's cores, several share a core."""
        super().__init__(problem)
        self.teams = tuple(teams)
        self.threads = threads
        width = len(self.teams[0].cores)
        positions, _ = team_times(problem, width)
        self.seconds: Floats = problem.times.along(self.teams[0].cores)[np.arange(len(positions)), positions]
        """(n_ops,) float64, each op's lone seconds on the first team."""
        counts = problem.times.counts
        self._width = [counts[p] for p in positions.tolist()]
        self._launch_threads = {n: threads if n == width else n for n in counts}
        self._prefixes: dict[tuple[int, int], tuple[int, ...]] = {}
        alone = len({core for team in self.teams for core in team.cores}) == sum(len(t.cores) for t in self.teams)
        self._team_of = {team.cores[0]: i for i, team in enumerate(self.teams)} if alone else None

    def decide(self, state: State) -> Sequence[Launch]:
        if not state.ready:
            return ()
        return [self.launch(op, number) for op, number in zip(state.ready, self.free_teams(state))]

    def free_teams(self, state: State) -> Iterator[int]:
        """Return the numbers of the teams that run no op, ascending."""
        if self._team_of is not None:  # nobody shares a core: idle ones tell, and they are few
            return iter(sorted(self._team_of[core] for core in state.idle if core in self._team_of))
        busy = {(at.cores[0], at.hardware_thread) for at in state.running}
        return (i for i, team in enumerate(self.teams) if (team.cores[0], team.hardware_thread) not in busy)

    def launch(self, op: int, team_number: int) -> Launch:
        """Return the launch of `op` on this team."""
        width = self._width[op]
        key = (team_number, width)
        cores = self._prefixes.get(key)
        team = self.teams[team_number]
        if cores is None:
            cores = self._prefixes[key] = team.cores[:width]
        return Launch(op, cores, self._launch_threads[width], team.hardware_thread)
