"""Turns a plan into the order of ops of each team, and the points where one team must wait for another.

Engines use a plan's times only as an order. On every hardware thread of every core the ops run in the plan's order of
start; each starts when its predecessors, and the ops before it on its cores, have finished. Both conditions follow the
same order of start, so there is no deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Machine, OpGraph, Placement, Plan
from threadcast.core.errors import PlanError

THREADS_PER_CORE = 64
"""Most threads of a team per core of its own, and of all teams together per core of the machine. Threads of teams that
have run stay, asleep; a plan with different cores for each op would make thousands of them."""


class Team(NamedTuple):
    """The threads that run an op: their number, the ids of their cores, and the first hardware thread used per core."""

    cores: tuple[int, ...]
    threads: int
    hardware_thread: int = 0

    @property
    def hardware_threads(self) -> list[tuple[int, int]]:
        """Pairs (core id, hardware thread) that the team occupies; numbers beyond the core's hardware threads share."""
        each = -(-self.threads // len(self.cores))
        return [(core, self.hardware_thread + i) for i in range(each) for core in self.cores]


Seat = tuple[int, int]
"""A CPU, and the number of a thread on it: above 0 only where a core has more threads than CPUs."""


def seats_of(team: Team, machine: Machine) -> list[Seat]:
    """Return the CPU and number there of each of the team's threads; PlanError for cores that the machine lacks."""
    cpus = {core.id: core.cpus for core in machine.cores}
    unknown = [core for core in team.cores if core not in cpus]
    if unknown:
        raise PlanError(f"cores {unknown} are not among the {len(cpus)} of {machine.name}; plan for this machine")
    return [
        (cpus[core][min(number, len(cpus[core]) - 1)], max(0, number - len(cpus[core]) + 1))
        for core, number in team.hardware_threads[: team.threads]
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The ops of each team in order, and the ops of other teams that each op waits for. Ops are positions in the graph.

    `sequences[t]` are the ops of team t, in the order in which it runs them. `waits[op]` are ops of other teams that
    must have finished before `op` starts, without those that are certain to have finished by the teams' own order and
    by earlier waits. `tells[op]` are the ops that wait for `op`. `team_of[op]` is the number of its team.
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
    """Shape (n_ops, n_teams): how many ops of each team have certainly finished when the op has."""

    def __post_init__(self) -> None:
        tells: list[list[int]] = [[] for _ in self.waits]
        for op, awaited in enumerate(self.waits):
            for other in awaited:
                tells[other].append(op)
        object.__setattr__(self, "tells", tuple(map(tuple, tells)))

    def surely_before(self, first: int, second: int) -> bool:
        """Return whether in every run op `first` has finished when op `second` has."""
        return bool(self._known[second, self.team_of[first]] > self._place[first])


def arrange(plan: Plan, graph: OpGraph) -> Replay:
    """Return how to replay `plan`; PlanError where it is not a plan of `graph` or starts an op before a predecessor.

    Superfluous waits are removed by vector clocks (Fidge 1988, Mattern 1989): a team that has waited for an op need not
    wait for what had to finish before that op.
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
        before = {*graph.predecessors[op], *(last_on[at] for at in teams[mine].hardware_threads if at in last_on)}
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
        last_on.update(dict.fromkeys(teams[mine].hardware_threads, op))
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
    """Ops by start; ops that start at the same time (some have no length) by dependency."""
    rank = {op: i for i, op in enumerate(graph.topological_order)}
    order = sorted(range(len(graph)), key=lambda op: (placements[op].start_s, rank[op]))
    position = {op: i for i, op in enumerate(order)}
    for edge in graph.edges:
        if position[edge.source] > position[edge.target]:
            early, late = placements[edge.target], placements[edge.source]
            raise PlanError(
                f"the plan starts op {early.id!r} at {early.start_s:.9g} s, before its predecessor {late.id!r} "
                f"at {late.start_s:.9g} s; check it with `threadcast.scheduler.check_schedule`"
            )
    return order
