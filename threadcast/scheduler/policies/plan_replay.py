"""Runs a plan as it was made: every op on its cores, every core's ops in their order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from threadcast.core import OpGraph, Plan
from threadcast.scheduler.checker import check_schedule
from threadcast.scheduler.policies.base import Launch, Policy, Problem, State

Slot = tuple[int, int]
"""A core id and the number of one of its hardware threads."""


class PlanReplay(Policy):
    """Launches an op as soon as it is ready and all that the plan put before it on its cores has finished.

    Start times are the plan's only as far as ops take as long as predicted; order and cores always are. PlanError
    where the plan is not one of the problem's graph.
    """

    name = "plan_replay"

    def __init__(self, problem: Problem, *, plan: Plan) -> None:
        super().__init__(problem)
        check_schedule(problem.graph, plan, machine=problem.machine, oversubscribed=True)
        position = {op_id: i for i, op_id in enumerate(problem.graph.ids)}
        place = {op: i for i, op in enumerate(problem.graph.topological_order)}
        # an op of no predicted time may share its start with one behind it: dependencies decide then
        in_order = sorted(plan.ops, key=lambda at: (at.start_s, at.finish_s, place[position[at.id]]))
        rank = [0] * len(in_order)
        self._launch: dict[int, Launch] = {}
        self._queues: dict[Slot, list[int]] = {}
        for i, at in enumerate(in_order):
            op = position[at.id]
            rank[op] = i
            self._launch[op] = Launch(op, at.cores, at.threads, at.hardware_thread)
            for slot in _slots(self._launch[op]):
                self._queues.setdefault(slot, []).append(op)
        self.rank = self._place = rank
        self._slots_of = {op: tuple(_slots(launch)) for op, launch in self._launch.items()}

    def decide(self, state: State) -> Sequence[Launch]:
        finished = state.finished if state.finished is not None else finished_ops(self.problem.graph, state)
        taken = {slot for at in state.running for slot in self._slots_of[at.op]}
        heads = {slot: self._head(slot, finished) for slot in self._queues if slot not in taken}
        due = {op for op in heads.values() if op is not None and op in state.ready}
        able = [op for op in due if all(heads.get(slot) == op for slot in self._slots_of[op])]
        return [self._launch[op] for op in sorted(able, key=self._place.__getitem__)]

    def _head(self, slot: Slot, finished: Sequence[int]) -> int | None:
        """The first op of the slot's queue that has not finished: those that have are its beginning."""
        queue = self._queues[slot]
        at = bisect_left(queue, True, key=lambda op: not finished[op])
        return queue[at] if at < len(queue) else None


def finished_ops(graph: OpGraph, state: State) -> bytes:
    """Return one byte an op, 1 where it has finished: where it neither runs, is ready, nor waits for one that does."""
    finished = bytearray(b"\x01" * len(graph))
    to_visit = [*state.ready, *(at.op for at in state.running)]
    while to_visit:
        op = to_visit.pop()
        if finished[op]:
            finished[op] = 0
            to_visit += graph.successors[op]
    return bytes(finished)


def _slots(launch: Launch) -> list[Slot]:
    each = -(-launch.threads // len(launch.cores))
    numbers = range(launch.hardware_thread, launch.hardware_thread + each)
    return [(core, number) for core in launch.cores for number in numbers]
