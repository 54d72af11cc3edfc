"""Plans, the registry of policies, and replays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.scheduler.random_problems import hybrid_problem, problem_of
from tests.waiting import HANGS_S
from threadcast.core import CurveTable, Machine, OpGraph, Plan
from threadcast.core.errors import InvalidInput, NotFound, PlanError
from threadcast.scheduler import policies
from threadcast.scheduler.planner import plan, plan_each
from threadcast.scheduler.policies import (
    Launch,
    Problem,
    State,
    create,
    names,
    register,
    registry,
    without_options,
)
from threadcast.scheduler.policies.fifo import Fifo
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.simulation.checker import check_schedule

CURVE = {1: 4.0, 2: 2.2, 4: 1.5}
PROBLEM = problem_of([CURVE] * 6, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5)], threads_per_core=2)


def test_a_plan_says_how_far_from_the_best_it_can_be() -> None:
    """A chain of two: the bound is its fastest path, 3 s; at two threads each it takes 4.4 s."""
    planned = plan(problem_of([CURVE] * 2, [(0, 1)]), policy="uniform", inter=1, intra=2)
    assert planned.makespan_s == 4.4
    assert planned.lower_bound_s == 3.0
    assert planned.gap == pytest.approx(4.4 / 3 - 1)
    assert (planned.policy, planned.cores, planned.curves_from) == ("uniform", 4, "file")


@pytest.mark.parametrize(
    "wrong", [{"seed": 1.5}, {"budget_s": "x"}, {"interference": 3}, {"policy": "fifo", "interference": 3}], ids=str
)
def test_an_argument_of_another_type_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=list(wrong)[-1]):
        plan(PROBLEM, **wrong)


def test_auto_is_never_worse_than_its_policies_nor_than_the_default() -> None:
    each = {name: plan(PROBLEM, policy=name).makespan_s for name in without_options()}
    best = plan(PROBLEM, budget_s=HANGS_S)  # the search ends by itself
    assert best.makespan_s <= min(each.values())
    assert best.makespan_s <= plan(PROBLEM, policy="fifo").makespan_s
    check_schedule(PROBLEM.graph, best, machine=PROBLEM.machine)


def test_auto_does_not_take_a_plan_of_shared_cores_for_a_rounding_error() -> None:
    """In another order the sum of these seconds is 4e-15 less."""
    problem = problem_of([{2: seconds} for seconds in (7.3, 4.7, 2.6, 0.6, 3.5)], cores=2)
    best = plan(problem)
    assert best.policy == "search"
    check_schedule(problem.graph, best, machine=problem.machine)


def test_the_bound_of_plans_that_share_cores_is_lower() -> None:
    problem = problem_of([{2: 1.0}] * 3, cores=3, threads_per_core=2)
    fifo, grid = plan_each(problem, ["fifo", "manual_grid"])
    assert (fifo.policy, grid.policy) == ("fifo", "manual_grid")
    assert fifo.lower_bound_s == pytest.approx(2.0)
    assert grid.lower_bound_s == pytest.approx(2.0 / 1.03)


def test_policies_of_third_parties_are_registered_like_the_built_in_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry._factories, "_things", dict(registry._factories._things))

    class LastFirst(policies.Policy):
        """The op that became ready last, on one core."""

        name = "last_first"

        def decide(self, state: State) -> list[Launch]:
            return [Launch(state.ready[-1], state.idle[:1], 1)] if state.idle else []

    register("last_first", LastFirst)
    register("last_first", LastFirst)
    assert names()[-1] == "last_first"
    assert plan(PROBLEM, policy="last_first").policy == "last_first"
    with pytest.raises(InvalidInput, match="'last_first' is registered already"):
        register("last_first", Fifo)


def test_unknown_policies_and_options_are_refused_with_what_is_known() -> None:
    with pytest.raises(NotFound, match=r"did you mean 'critical_path'. known: fifo"):
        create("critical_pth", PROBLEM)
    with pytest.raises(NotFound, match=r"did you mean 'search'. known: auto, search, fifo"):
        plan(PROBLEM, policy="serach")
    with pytest.raises(InvalidInput, match=r"policy 'uniform'.*its options are: inter, intra"):
        create("uniform", PROBLEM, inters=2, intra=1)
    with pytest.raises(InvalidInput, match="its options are: threads, inter"):
        plan(PROBLEM, policy="fifo", width=2)
    with pytest.raises(InvalidInput, match=r"options \['inter'\] need a named policy"):
        plan(PROBLEM, inter=2)


@pytest.mark.parametrize(
    ("policy", "options", "allowed"),
    [
        ("uniform", {"inter": 1.5, "intra": 1}, "inter=1.5 must be a whole number"),
        ("critical_path", {"executors": math.nan}, "executors=nan must be a whole number or none"),
        ("critical_path", {"tiny_s": math.nan}, "tiny_s=nan must be a number"),
        ("critical_path", {"light_executor": 3}, "light_executor=3 must be true or false"),
        ("critical_path", {"interference": 2}, "interference=2 must be an object: Interference or none"),
        ("manual_grid", {"inter": 2}, "inter=2 must be several of a whole number"),
        ("manual_grid", {"intra": "12"}, "intra='12' must be several of a whole number or none"),
        ("strategies", {"strategies": [1, "2"]}, "must be several of a whole number"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(policy: str, options: dict[str, object], allowed: str) -> None:
    with pytest.raises(InvalidInput, match=allowed):
        create(policy, PROBLEM, **options)


def test_an_empty_graph_and_missing_curves_are_refused() -> None:
    machine, table = Machine.uniform("m", 2), PROBLEM.curves
    with pytest.raises(PlanError, match="no ops"):
        Problem(OpGraph((), ()), table.take([]), machine)
    with pytest.raises(PlanError, match="5 curves for 6 ops"):
        Problem(PROBLEM.graph, table.take(range(5)), machine)


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_curves_of_impossible_times_are_refused(wrong: float) -> None:
    seconds = PROBLEM.curves.seconds.copy()
    seconds[2, 0] = wrong
    table = PROBLEM.curves
    with pytest.raises(PlanError, match="seconds of at least 0"):
        Problem(PROBLEM.graph, CurveTable(table.cases, seconds, seconds, seconds, table.source), PROBLEM.machine)


def test_a_replay_refuses_a_plan_of_another_graph_or_machine() -> None:
    planned = plan(PROBLEM)
    with pytest.raises(PlanError, match="never run"):
        PlanReplay(PROBLEM, plan=replace(planned, ops=planned.ops[1:]))
    other = problem_of([CURVE] * 6, cores=2)
    wide: Plan = plan(PROBLEM, policy="fifo")
    with pytest.raises(PlanError, match="which the machine has not"):
        PlanReplay(other, plan=wide)


def test_any_seed_from_0_on_is_taken() -> None:
    problem = problem_of([{2: 1.0}] * 4, cores=3)
    assert plan(problem, seed=2**70, budget_s=HANGS_S).makespan_s == 4.0
    with pytest.raises(InvalidInput, match="seed=-1 must be at least 0"):
        plan(problem, seed=-1)


@pytest.mark.parametrize(("threads_per_core", "makespan_s"), [(1, 3.0), (2, 1 + 2 / 1.03)])
def test_auto_gives_no_core_more_threads_than_it_has(threads_per_core: int, makespan_s: float) -> None:
    """All three at once would take 2 s by time slices, and two at once on hyper-threads 2 / 1.03 s."""
    problem = problem_of([{2: 1.0}] * 3, cores=3, threads_per_core=threads_per_core)
    assert plan(problem, policy="manual_grid").makespan_s < makespan_s
    made = plan(problem, budget_s=HANGS_S)
    assert made.makespan_s == pytest.approx(makespan_s)
    check_schedule(problem.graph, made, machine=problem.machine)


def test_auto_gives_no_core_of_a_hybrid_machine_more_threads_than_it_has() -> None:
    """An op of all cores and small ones: a second hardware thread for each would be free on equal cores."""
    problem = hybrid_problem([{4: 4.0}, *[{1: 3.9}] * 6, {4: 2.0}], fast=2, small=2)
    for name in ("auto", "strategies"):
        check_schedule(problem.graph, plan(problem, policy=name), machine=problem.machine)
