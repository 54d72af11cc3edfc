"""The contract that every registered policy keeps, on random graphs of three shapes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.policy_contract import PolicyContract, Watched
from tests.scheduler.random_problems import problems
from threadcast.core import Placement, Plan, Trace
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Policy, Problem, create, names
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.problem.hardware_threads import any_shares_cores
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.scheduler.simulation.simulator import simulate

OPTIONS = {"uniform": {"inter": 2, "intra": 3}}
OVERSUBSCRIBING = {"uniform", "manual_grid"}


def made(name: str, problem: Problem) -> Policy:
    return create(name, problem, **OPTIONS.get(name, {}))


def by_name(op: Placement) -> str:
    return op.id


def order_on(core: int, schedule: Plan | Trace) -> list[str]:
    """Ops that take time on the first hardware thread of a core, in order."""
    used = [op for op in schedule.ops if core in op.cores and op.hardware_thread == 0 and op.duration_s]
    return [op.id for op in sorted(used, key=lambda op: op.start_s)]


@pytest.mark.parametrize("name", names())
@settings(max_examples=10, deadline=None)
@given(problem=problems())
def test_its_plan_survives_json_and_its_replay_is_never_later(name: str, problem: Problem) -> None:
    planned = plan(problem, policy=name, **OPTIONS.get(name, {}))
    again = Plan.from_json(planned.to_json())
    assert again == planned
    replayed = simulate(Watched(PlanReplay(problem, plan=again)))
    check_schedule(problem.graph, replayed, machine=problem.machine, oversubscribed=True)
    for op, ran in zip(sorted(planned.ops, key=by_name), sorted(replayed.ops, key=by_name), strict=True):
        assert (ran.id, ran.cores, ran.threads, ran.hardware_thread) == (
            op.id,
            op.cores,
            op.threads,
            op.hardware_thread,
        )
        assert any_shares_cores(planned.ops) or ran.finish_s <= op.finish_s * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), name=st.sampled_from(names()), seed=st.integers(1, 7))
def test_a_replay_keeps_cores_and_order_when_ops_take_other_times(problem: Problem, name: str, seed: int) -> None:
    planned = plan(problem, policy=name, **OPTIONS.get(name, {}))
    scale = [(i * seed % 5 + 1) / 2 for i in range(len(problem.graph))]
    table = problem.curves
    seconds = table.seconds * [[factor] for factor in scale]
    true_curves = type(table)(table.cases, seconds, seconds, seconds, table.source)
    trace = simulate(Watched(PlanReplay(problem, plan=planned)), true_curves=true_curves)
    check_schedule(problem.graph, trace, machine=problem.machine, oversubscribed=True)
    for ran in trace.ops:
        assert ran.cores == planned.by_id()[ran.id].cores
    for core in range(planned.cores):
        assert order_on(core, trace) == order_on(core, planned)


LIGHT = "critical_path with a light executor"


class TestContract(PolicyContract):
    """The suite that third parties subclass, on every policy."""

    name = ""

    @pytest.fixture(autouse=True, params=[*names(), LIGHT])
    def named(self, request: pytest.FixtureRequest) -> None:
        type(self).name, type(self).oversubscribes = request.param, request.param in OVERSUBSCRIBING

    @classmethod
    def make_policy(cls, problem: Problem) -> Policy:
        if cls.name == LIGHT:
            return create("critical_path", problem, light_executor=len(problem.machine) > 1)
        return made(cls.name, problem)
