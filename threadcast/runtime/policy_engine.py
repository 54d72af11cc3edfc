"""Runs a policy on real cores: the object that the simulator drives, asked at the same events by the real clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from threadcast.capture.calls import Call
from threadcast.capture.capture import Captured
from threadcast.capture.program import Program
from threadcast.core.errors import IllegalLaunch, PlanError
from threadcast.runtime.executor_engine import ExecutorEngine
from threadcast.runtime.executors import Executors
from threadcast.runtime.replay import Team
from threadcast.runtime.step import Step
from threadcast.scheduler.problem import Launch, Policy, Running, State
from threadcast.scheduler.simulation.occupancy import Occupancy
from threadcast.scheduler.simulation.ready_set import ReadyQueue


class PolicyEngine(ExecutorEngine):
    """Runs the steps of `captured` as `policy` decides while they run, whenever an op has finished.

    The thread that finished it asks, and runs the next op itself where that is on its own team. The policy is asked
    by one thread at a time. PlanError where its problem is not of this graph; a run raises IllegalLaunch where the
    policy breaks its contract.
    """

    def __init__(self, captured: Captured, policy: Policy, *, executors: Executors | None = None) -> None:
        machine = policy.problem.machine
        if policy.problem.graph.ids != captured.graph.ids:
            raise PlanError(
                "the policy's problem is not of this graph; make the policy for the graph that was captured"
            )
        self.policy = policy
        first = Team((machine.cores[0].id,), 1)
        super().__init__(captured, machine, teams=[first], executors=executors, cores=len(machine), policy=policy.name)

    def _new_step(self, slots: list[Any], calls: Sequence[Call]) -> Step:
        return _PolicyStep(slots, self._executors, calls, self._program, self.policy)


class _PolicyStep(Step):
    def __init__(
        self,
        slots: list[Any],
        executors: Executors,
        calls: Sequence[Call],
        program: Program,
        policy: Policy,
    ) -> None:
        super().__init__(slots, executors)
        self._policy, self._problem = policy, policy.problem
        self._calls, self._touches = calls, program.touches
        self._first_slot = program.slot_of(0)
        self._uses = list(program.uses)
        self._waiting = [len(before) for before in self._problem.graph.predecessors]
        self._ready = ReadyQueue(policy.rank)
        self._occupancy = Occupancy(self._problem.machine)
        self._finished = bytearray(len(calls))
        self._running: dict[int, Running] = {}
        self._launches: dict[int, Launch] = {}
        self._from_s = time.perf_counter()

    @property
    def teams(self) -> Sequence[Team]:
        return [_team(launch) for _, launch in sorted(self._launches.items())]

    def begin(self) -> None:
        """Launch what the policy wants to run first."""
        with self.lock:
            for op, count in enumerate(self._waiting):
                if count == 0:
                    self._ready.add(op)
            launches = self._decide()
        self._start(launches)

    def _play(self, op: int | None, team: Team) -> None:
        """Run `op`, and whatever the policy then gives this team."""
        while op is not None and self.error is None:
            self.slots[self._first_slot + op] = self._calls[op](self.slots)
            with self.lock:
                self._finish(op)
                launches = self._decide()
            mine = next((launch for launch in launches if _team(launch) == team), None)
            self._start([launch for launch in launches if launch is not mine])
            op = None if mine is None else mine.op

    def _start(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            team = _team(launch)
            self.launch(team, partial(self._play, launch.op, team))

    def _finish(self, op: int) -> None:
        del self._running[op]
        self._finished[op] = 1
        self._occupancy.release(self._launches[op])
        for successor in self._problem.graph.successors[op]:
            self._waiting[successor] -= 1
            if not self._waiting[successor]:
                self._ready.add(successor)
        for slot in self._touches[op]:
            self._uses[slot] -= 1
            if not self._uses[slot]:
                self.slots[slot] = None

    def _decide(self) -> Sequence[Launch]:
        if not self._ready:
            return ()
        now_s = time.perf_counter() - self._from_s
        running = tuple(self._running.values())
        launches = self._policy.decide(State(now_s, self._ready, self._occupancy.idle(), running, self._finished))
        for launch in launches:
            self._accept(launch, now_s)
        if not self._running:
            raise IllegalLaunch(
                f"policy {self._policy.name!r} launched nothing with {len(self._ready)} ops ready and all cores idle"
            )
        return launches

    def _accept(self, launch: Launch, now_s: float) -> None:
        op = launch.op
        if op not in self._ready:
            raise IllegalLaunch(f"policy {self._policy.name!r} launched op {op}, which is not ready")
        self._occupancy.take(launch)
        self._ready.remove(op)
        self._launches[op] = launch
        finish_s = now_s + self._problem.times.on(op, launch.cores, launch.threads)
        self._running[op] = Running(op, launch.cores, launch.threads, now_s, finish_s, launch.hardware_thread)


def _team(launch: Launch) -> Team:
    return Team(tuple(sorted(launch.cores)), launch.threads, launch.hardware_thread)
