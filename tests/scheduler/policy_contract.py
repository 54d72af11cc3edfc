"""Tests of what every policy must do, as a class to subclass.

class TestMyPolicy(PolicyContract):
    @classmethod
    def make_policy(cls, problem):
        return MyPolicy(problem)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pytest

from threadcast.core import Core, Edge, Machine, Op, OpGraph
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.interference.core_sharing import CoreSharing
from threadcast.scheduler.policies.plan_replay import finished_ops
from threadcast.scheduler.problem import Launch, Policy, Problem, State
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.problem.hardware_threads import any_shares_cores
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.scheduler.simulation.simulator import simulate

MACHINES = (
    Machine.uniform("one core", 1),
    Machine.uniform("hyper-threaded", 2, threads_per_core=2),
    Machine.uniform("tiles", 8, group_size=2, threads_per_core=4),
    Machine.uniform("uneven groups", 7, group_size=3),
    Machine("hybrid", tuple(Core(i, (2 * i, 2 * i + 1) if i < 2 else (2 + i,), group=0) for i in range(5))),
)


class PolicyContract(ABC):
    """Tests of the promises of `Policy`, on random graphs for each of `MACHINES`."""

    oversubscribes: ClassVar[bool] = False
    """Whether the policy may put more threads on a core than it has hardware threads, as frameworks' settings do."""

    @classmethod
    @abstractmethod
    def make_policy(cls, problem: Problem) -> Policy:
        """Return the policy to test, for this problem."""

    @pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name.replace(" ", "-"))
    def test_its_schedules_are_legal_and_not_shorter_than_any_can_be(self, machine: Machine) -> None:
        for problem in random_problems(machine, seed=1):
            trace = simulate(Watched(self.make_policy(problem)))
            check_schedule(problem.graph, trace, machine=machine, oversubscribed=self.oversubscribes)
            gain = CoreSharing(machine).core_throughput if any_shares_cores(trace.ops) else 1.0
            assert lower_bounds(problem).best_s <= trace.makespan_s * gain * (1 + 1e-9)

    def test_two_of_it_decide_alike(self) -> None:
        for problem in random_problems(MACHINES[2], seed=2):
            assert simulate(self.make_policy(problem)) == simulate(self.make_policy(problem))

    def test_it_copes_with_ops_that_take_other_times_than_predicted(self) -> None:
        for problem in random_problems(MACHINES[2], seed=3):
            rng = np.random.default_rng(len(problem.graph))
            table = problem.curves
            seconds = table.seconds * rng.uniform(0.2, 5.0, size=(len(problem.graph), 1))
            true_curves = type(table)(table.cases, seconds, seconds, seconds, table.source)
            trace = simulate(Watched(self.make_policy(problem)), true_curves=true_curves)
            check_schedule(problem.graph, trace, machine=problem.machine, oversubscribed=self.oversubscribes)


class Watched(Policy):
    """Wraps a policy; checks each state, and that the policy decides the same when asked again."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.problem)
        self.name, self.rank = policy.name, policy.rank
        self._policy = policy

    def decide(self, state: State) -> Sequence[Launch]:
        check_state(self.problem, state, self.rank)
        launches = list(self._policy.decide(state))
        copied = State(state.now_s, tuple(state.ready), state.idle, state.running)
        assert list(self._policy.decide(copied)) == launches, "decide must be a pure function of the state"
        return launches


def check_state(problem: Problem, state: State, rank: Sequence[int] | None) -> None:
    """Assert that `state` keeps all promises of `State`."""
    graph, ready = problem.graph, list(state.ready)
    finished = finished_ops(graph, state)
    assert state.finished is None or bytes(state.finished) == finished
    assert ready, "a policy is asked only when something is ready"
    assert len(set(ready)) == len(ready)
    assert not {at.op for at in state.running} & set(ready)
    for op in ready:
        assert op in state.ready
        assert all(finished[before] for before in graph.predecessors[op])
    if rank is not None:
        assert [rank[op] for op in ready] == sorted(rank[op] for op in ready)
    busy = {core for at in state.running for core in at.cores}
    assert list(state.idle) == [core.id for core in problem.machine.cores if core.id not in busy]


def random_problems(machine: Machine, *, seed: int, count: int = 12) -> Iterator[Problem]:
    """Yield small problems: ops with up to three predecessors, jagged curves up to different counts, some views."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ops = int(rng.integers(1, 25))
        edges = {
            Edge(int(source), op)
            for op in range(1, ops)
            for source in rng.choice(op, size=min(op, int(rng.integers(0, 4))), replace=False)
        }
        kinds = rng.choice(["mm", "convolution", "relu", "view"], size=ops)
        ids = tuple(f"op{i}" for i in range(ops))
        curves = {op_id: _curve(rng, view=kind == "view") for op_id, kind in zip(ids, kinds)}
        graph = OpGraph(ids, tuple(Op(str(kind)) for kind in kinds), tuple(sorted(edges)), curves)
        yield Problem(graph, curves_of(graph, machine), machine)


def _curve(rng: np.random.Generator, *, view: bool) -> dict[int, float]:
    if view:
        return {1: 0.0}
    counts = [1, *sorted(rng.choice(np.arange(2, 9), size=int(rng.integers(0, 5)), replace=False).tolist())]
    work_s = 10 ** rng.uniform(-5, -2)
    return {int(n): float(work_s / n ** rng.uniform(0, 1) * rng.uniform(0.8, 1.2)) for n in counts}
