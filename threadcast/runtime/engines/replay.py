"""What each team does in which order, and where it must wait for another: a plan made ready to be replayed.

A plan's times order the ops, they do not time them: on every hardware thread of every core the ops run in the plan's
order of start, each when its predecessors and those before it on its cores have finished. Both kinds of order
follow the one order of start, so nothing can wait in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Machine, OpGraph, Placement, Plan
from threadcast.core.errors import PlanError

THREADS_PER_CORE = 64
"""Threads that a team may have per core of its own, and all teams together per core of the machine. Every team ever
used keeps its threads, asleep; a plan that gives each op cores of its own choice would make thousands."""


class Team(NamedTuple):
    """Who runs an op: so many threads on these cores (ids), from this hardware thread of each core on."""

    cores: tuple[int, ...]
    threads: int
    hardware_thread: int = 0

    @property
    def lanes(self) -> list[tuple[int, int]]:
        """(core, hardware thread) pairs that nobody else uses meanwhile; numbers beyond the core's are time slices."""
        each = -(-self.threads // len(self.cores))
        return [(core, self.hardware_thread + i) for i in range(each) for core in self.cores]


Seat = tuple[int, int]
"""A cpu, and which of the threads there: above 0 only where a core has more threads than cpus."""


def seats_of(team: Team, machine: Machine) -> list[Seat]:
    """Where each of the team's threads sits; PlanError for cores that the machine has not."""
    cpus = {core.id: core.cpus for core in machine.cores}
    unknown = [core for core in team.cores if core not in cpus]
    if unknown:
        raise PlanError(f"cores {unknown} are not among the {len(cpus)} of {machine.name}; plan for this machine")
    return [
        (cpus[core][min(lane, len(cpus[core]) - 1)], max(0, lane - len(cpus[core]) + 1))
        for core, lane in team.lanes[: team.threads]
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Ops by team, in order, and what each waits for.

    `sequences[t]` are positions in the graph, in the order in which team t runs them. `waits[op]` are ops of other
    teams that must have finished before `op` starts; whatever follows from the teams' own order and from earlier
    waits is left out. `tells[op]` are the ops that wait for it.
    """

    teams: tuple[Team, ...]
    order: tuple[int, ...]
    """All ops in the order in which the plan starts them."""
    sequences: tuple[tuple[int, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    tells: tuple[tuple[int, ...], ...] = field(init=False)
    team_of: tuple[int, ...]
    _place: tuple[int, ...]
    """Position of each op in its team's sequence."""
    _known: NDArray[np.int32]
    """(n_ops, n_teams): how many ops of each team have surely finished when the op has."""

    def __post_init__(self) -> None:
        tells: list[list[int]] = [[] for _ in self.waits]
        for op, awaited in enumerate(self.waits):
            for other in awaited:
                tells[other].append(op)
        object.__setattr__(self, "tells", tuple(map(tuple, tells)))

    def surely_before(self, first: int, second: int) -> bool:
        """Whether `first` has finished, in every run, when `second` has."""
        return bool(self._known[second, self.team_of[first]] > self._place[first])


def arrange(plan: Plan, graph: OpGraph) -> Replay:
    """Return how to replay `plan`; PlanError where it is not a plan of `graph` or starts an op too early.

    Waits are thinned by vector clocks (Fidge 1988, Mattern 1989): a team that waited for an op knows of all that
    had to finish before it.
    """
    placements = _placed(plan, graph)
    numbers: dict[Team, int] = {}
    team_of = tuple(numbers.setdefault(_team(placed), len(numbers)) for placed in placements)
    teams = tuple(numbers)
    sequences: list[list[int]] = [[] for _ in teams]
    place = [0] * len(graph)
    waits: list[tuple[int, ...]] = [()] * len(graph)
    known = np.zeros((len(graph), len(teams)), dtype=np.int32)
    last_on: dict[tuple[int, int], int] = {}
    turn: dict[int, int] = {}
    for op in _order(placements, graph):
        turn[op] = len(turn)
        mine = team_of[op]
        before = {*graph.predecessors[op], *(last_on[lane] for lane in teams[mine].lanes if lane in last_on)}
        clock = known[op]
        if sequences[mine]:
            clock[:] = known[sequences[mine][-1]]
        awaited = []
        for other in sorted(before, key=turn.__getitem__, reverse=True):
            if clock[team_of[other]] <= place[other]:
                awaited.append(other)
                np.maximum(clock, known[other], out=clock)
        waits[op] = tuple(awaited)
        place[op] = len(sequences[mine])
        sequences[mine].append(op)
        clock[mine] = len(sequences[mine])
        last_on.update(dict.fromkeys(teams[mine].lanes, op))
    return Replay(teams, tuple(turn), tuple(map(tuple, sequences)), tuple(waits), team_of, tuple(place), known)


def _placed(plan: Plan, graph: OpGraph) -> list[Placement]:
    by_id = plan.by_id()
    missing, unknown = set(graph.ids) - set(by_id), set(by_id) - set(graph.ids)
    if missing or unknown:
        what = f"lacks {min(missing)!r}" if missing else f"has {min(unknown)!r}, which the graph has not"
        raise PlanError(f"the plan is not of this graph: it {what}; plan the graph that was captured")
    return [by_id[op_id] for op_id in graph.ids]


def _team(placed: Placement) -> Team:
    if not len(placed.cores) <= placed.threads <= THREADS_PER_CORE * len(placed.cores):
        raise PlanError(
            f"op {placed.id!r} has {placed.threads} threads on {len(placed.cores)} cores: from 1 to {THREADS_PER_CORE} "
            "a core are allowed"
        )
    return Team(tuple(sorted(placed.cores)), placed.threads, placed.hardware_thread)


def _order(placements: list[Placement], graph: OpGraph) -> list[int]:
    """Ops by start; among equals, which have no length, dependencies first."""
    rank = {op: i for i, op in enumerate(graph.topological_order)}
    order = sorted(range(len(graph)), key=lambda op: (placements[op].start_s, rank[op]))
    position = {op: i for i, op in enumerate(order)}
    for edge in graph.edges:
        if position[edge.source] > position[edge.target]:
            early, late = placements[edge.target], placements[edge.source]
            raise PlanError(
                f"the plan starts op {early.id!r} at {early.start_s:.9g} s, before its predecessor {late.id!r} "
                f"at {late.start_s:.9g} s; check it with `scheduler.checker`"
            )
    return order
