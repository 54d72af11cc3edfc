"""A policy that follows a plan: every op on its cores, the ops of each core in the plan's order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from threadcast.core import OpGraph, Placement, Plan
from threadcast.core.core_order import CoreOrder
from threadcast.scheduler.problem import Launch, Policy, Problem, State
from threadcast.scheduler.problem.hardware_threads import hardware_threads
from threadcast.scheduler.simulation.checker import check_schedule


class PlanReplay(Policy):
    """Launches an op as soon as it is ready and all ops that the plan has before it on its cores have finished.

    Order and cores are always the plan's, and ops share a core only where the plan has them side by side (`CoreOrder`);
    start times are the plan's only if ops take as long as predicted. PlanError where the plan is not a legal one of the
    problem's graph and machine.
    """

    name = "plan_replay"

    def __init__(self, problem: Problem, *, plan: Plan) -> None:
        super().__init__(problem)
        check_schedule(problem.graph, plan, machine=problem.machine, oversubscribed=True)
        by_id = plan.by_id()
        order = CoreOrder()
        self.rank = self._rank = rank = [0] * len(plan.ops)
        self._launch: dict[int, Launch] = {}
        self._threads_of: dict[int, list[tuple[int, int]]] = {}
        self._before: dict[int, tuple[int, ...]] = {}
        self._on: dict[tuple[int, int], list[int]] = {}
        """All ops of each hardware thread, a core id and a number, in the order in which they run."""
        for i, op in enumerate(plan_order(problem.graph, plan.ops)):
            at = by_id[problem.graph.ids[op]]
            rank[op] = i
            launch = self._launch[op] = Launch(op, at.cores, at.threads, at.hardware_thread)
            numbers = hardware_threads(launch)
            self._threads_of[op] = [(core, number) for core in at.cores for number in numbers]
            self._before[op] = tuple(order.next(op, at, numbers))
            for thread in self._threads_of[op]:
                self._on.setdefault(thread, []).append(op)

    def decide(self, state: State) -> Sequence[Launch]:
        finished = state.finished if state.finished is not None else finished_ops(self.problem.graph, state)
        free = len(self._on) - sum(len(self._threads_of[at.op]) for at in state.running)
        launches: list[Launch] = []
        for op in state.ready if len(state.ready) <= free else self._next(state, finished):
            if not free:
                break
            if all(finished[before] for before in self._before[op]):
                launches.append(self._launch[op])
                free -= len(self._threads_of[op])
        return launches

    def _next(self, state: State, finished: Sequence[int]) -> list[int]:
        """The ready ops that are next on a free hardware thread, by rank: thousands may be ready, few threads free."""
        busy = {thread for at in state.running for thread in self._threads_of[at.op]}
        found: set[int] = set()
        for thread, ops in self._on.items():
            if thread not in busy:
                found.update(ops[bisect_left(ops, True, key=lambda op: not finished[op]) :][:1])
        return sorted((op for op in found if op in state.ready), key=self._rank.__getitem__)


def finished_ops(graph: OpGraph, state: State) -> bytes:
    """Return one byte for each op: 1 if it has finished, 0 if it runs, is ready, or waits for such an op."""
    finished = bytearray(b"\x01" * len(graph))
    to_visit = [*state.ready, *(at.op for at in state.running)]
    while to_visit:
        op = to_visit.pop()
        if finished[op]:
            finished[op] = 0
            to_visit += graph.successors[op]
    return bytes(finished)


def plan_order(graph: OpGraph, placements: Sequence[Placement]) -> list[int]:
    """Return the ops, as positions in `graph`, in the order in which a plan puts them on their cores.

    That is by start, then by finish, then by dependency, because an op that takes no time may share both with the next.
    """
    position = {op_id: i for i, op_id in enumerate(graph.ids)}
    place = {op: i for i, op in enumerate(graph.topological_order)}
    keys = [(at.start_s, at.finish_s, place[position[at.id]], position[at.id]) for at in placements]
    return [op for _, _, _, op in sorted(keys)]
