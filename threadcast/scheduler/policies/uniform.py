"""One inter-op and one intra-op thread count for the whole graph, the two settings of frameworks."""

from __future__ import annotations

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.policies.team_policy import Team, TeamPolicy
from threadcast.scheduler.problem import Problem


class Uniform(TeamPolicy):
    """Launches ops first in, first out: up to `inter` ops at a time, each with `intra` threads.

    Where inter x intra exceeds the number of cores, teams share cores as evenly as possible. Where intra exceeds it,
    several threads of an op share a core. Liu et al. 2018, Table I, have such settings. The simulator's interference
    determines their cost.
    """

    name = "uniform"

    def __init__(self, problem: Problem, *, inter: int, intra: int) -> None:
        for what, value in (("inter", inter), ("intra", intra)):
            if value < 1:
                raise InvalidInput(f"{what}={value}: at least 1 is needed")
        self.inter, self.intra = inter, intra
        super().__init__(problem, teams_of(problem, inter, intra), threads=intra)


def teams_of(problem: Problem, inter: int, intra: int) -> list[Team]:
    """Return the teams of `Uniform`: the cores divided in order.

    A team takes the lowest hardware threads that are free on all of its cores.
    """
    order = [core for group in problem.machine.groups for core in group]
    width = min(intra, len(order))
    depth = -(-intra // width)  # hardware threads that an op takes of each of its cores
    around = order + order
    taken = dict.fromkeys(order, 0)  # bit i: the i-th hardware threads, `depth` at a time, are a team's
    teams: list[Team] = []
    for number in range(min(inter, len(problem.graph))):
        start = number * width % len(order)
        cores = tuple(around[start : start + width])
        in_use = 0
        for core in cores:
            in_use |= taken[core]
        free = ~in_use & (in_use + 1)  # its lowest bit that is not set
        for core in cores:
            taken[core] |= free
        teams.append(Team(cores, depth * (free.bit_length() - 1)))
    return teams
