"""Turns a plan into the order of ops of each team, and the points where one team must wait for another.

Engines use a plan's times only as an order. On every hardware thread of every core the ops run in the plan's order of
start; each starts when its predecessors, and the ops before it on its cores (`CoreOrder`), have finished. Both
conditions follow the same order of start, so there is no deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Machine, OpGraph, Placement, Plan
from threadcast.core.core_order import CoreOrder
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

    `previous[op]` is the op that the same team runs before it. `waits[op]` are ops of other teams that
    must have finished before `op` starts, without those that are certain to have finished by the teams' own order and
    by earlier waits. `tells[op]` are the ops that wait for `op`. `team_of[op]` is the number of its team.
    """

    teams: tuple[Team, ...]
    order: tuple[int, ...]
    """All ops in the order in which the plan starts them."""
    previous: Mapping[int, int]
    waits: tuple[tuple[int, ...], ...]
    tells: tuple[tuple[int, ...], ...] = field(init=False)
    team_of: tuple[int, ...]

    def __post_init__(self) -> None:
        tells: list[list[int]] = [[] for _ in self.waits]
        for op, awaited in enumerate(self.waits):
            for other in awaited:
                tells[other].append(op)
        object.__setattr__(self, "tells", tuple(map(tuple, tells)))

    def finished(self) -> Iterator[tuple[int, Callable[[int], bool]]]:
        """Yield each op in order, with a function that says whether another op has finished in every run when it has.

        The function is valid until the next op. It is computed anew by each call: to keep what is certain of all pairs
        of ops would take far more memory than the plan.
        """
        for op, _, surely in _clocks(self.order, self.previous, self.waits, _chains(self.teams, self.team_of)):
            yield op, surely


def arrange(plan: Plan, graph: OpGraph) -> Replay:
    """Return how to replay `plan`; PlanError where it is not a plan of `graph` or starts an op before a predecessor.

    Superfluous waits are removed by vector clocks (`_clocks`): a team that has waited for an op need not wait for what
    had to finish before that op.
    """
    placements = _placed(plan, graph)
    numbers: dict[Team, int] = {}
    team_of = tuple(numbers.setdefault(_team(placed), len(numbers)) for placed in placements)
    teams = tuple(numbers)
    order = tuple(_order(placements, graph))
    turn = dict(zip(order, range(len(order))))
    latest: dict[int, int] = {}
    previous: dict[int, int] = {}
    before: list[Sequence[int]] = [()] * len(graph)
    on_cores = CoreOrder()
    for op in order:
        mine = team_of[op]
        hardware_threads = {number for _, number in teams[mine].hardware_threads}
        others = {*graph.predecessors[op], *on_cores.next(op, placements[op], hardware_threads)}
        before[op] = sorted(others, key=turn.__getitem__, reverse=True)
        if mine in latest:
            previous[op] = latest[mine]
        latest[mine] = op
    waits: list[tuple[int, ...]] = [()] * len(graph)
    for op, awaited, _ in _clocks(order, previous, before, _chains(teams, team_of)):
        waits[op] = awaited
    return Replay(teams, order, previous, tuple(waits), team_of)


def _chains(teams: Sequence[Team], team_of: Sequence[int]) -> list[int]:
    """For each op the number of a chain. Ops of a chain share a hardware thread, so they run one after the other.

    There are at most as many chains as hardware threads, while a plan can have a team for each op.
    """
    numbers: dict[tuple[int, int], int] = {}
    chain_of_team = [numbers.setdefault((team.cores[0], team.hardware_thread), len(numbers)) for team in teams]
    return [chain_of_team[team] for team in team_of]


def _clocks(
    order: Sequence[int], previous: Mapping[int, int], before: Sequence[Sequence[int]], chain_of: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...], Callable[[int], bool]]]:
    """Yield each op in `order`, the ops of `before[op]` that it must wait for, and what has finished when it has.

    `previous[op]` is the op before it in its team, `before[op]` what else must have finished, the latest first. An op
    need not wait for what is certain by its team's order and its other waits. The last member is a function that tells
    whether another op has certainly finished when this one has; it is valid until the next op.

    Vector clocks (Fidge 1988, Mattern 1989): an op's clock says for each chain how many of its ops have finished. It is
    (n_chains,) int32, and is dropped after the last op that asks for it.
    """
    askers = Counter(previous.values())
    for others in before:
        askers.update(others)
    counts = [0] * (max(chain_of, default=0) + 1)
    place = [0] * len(chain_of)
    clocks: dict[int, NDArray[np.int32]] = {}
    for op in order:
        own = previous.get(op)
        clock = np.zeros(len(counts), dtype=np.int32) if own is None else clocks[own].copy()
        awaited = []
        for other in before[op]:
            if clock[chain_of[other]] < place[other]:
                awaited.append(other)
                np.maximum(clock, clocks[other], out=clock)
        for other in before[op] if own is None else (own, *before[op]):
            askers[other] -= 1
            if not askers[other]:
                del clocks[other]
        mine = chain_of[op]
        counts[mine] += 1
        clock[mine] = place[op] = counts[mine]
        if askers[op]:
            clocks[op] = clock

        def surely(other: int, clock: NDArray[np.int32] = clock) -> bool:
            return bool(0 < place[other] <= clock[chain_of[other]])

        yield op, tuple(awaited), surely


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
