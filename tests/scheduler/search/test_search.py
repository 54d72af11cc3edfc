"""What the search finds is legal, is optimal where that can be checked, and is the same again."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.scheduler.brute_force import best_makespan_s
from tests.scheduler.random_problems import curves, problem_of, problems
from tests.waiting import HANGS_S
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.interference.core_sharing import CoreSharing
from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.instance import Instance
from threadcast.scheduler.planner import SEARCH, plan
from threadcast.scheduler.policies import Problem, Running
from threadcast.scheduler.policies.cpa import Cpa
from threadcast.scheduler.search.allotments import balanced
from threadcast.scheduler.search.search import Search
from threadcast.scheduler.simulation.checker import check_schedule


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), seed=st.integers(0, 3))
def test_its_plans_are_legal_on_real_cores_and_never_beat_the_bound(problem: Problem, seed: int) -> None:
    planned = plan(problem, policy=SEARCH, seed=seed)
    check_schedule(problem.graph, planned, machine=problem.machine)
    assert lower_bounds(problem).best_s <= planned.makespan_s * (1 + 1e-9)
    assert all(op.threads == len(op.cores) for op in planned.ops)
    for position, op_id in enumerate(problem.graph.ids):
        op = planned.by_id()[op_id]
        assert op.duration_s == pytest.approx(problem.times.on(position, op.cores, op.threads))


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    """Up to six ops in any order on cores of one cache group, where any cores are as good as any others."""
    count = draw(st.integers(1, 6))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8)) if pairs else []
    made = [draw(curves()) for _ in range(count)]
    assume(all(min(curve.values()) > 0 for curve in made))
    return problem_of(made, edges, cores=draw(st.integers(1, 4)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problem=small_problems())
def test_on_up_to_six_ops_it_finds_the_optimum(problem: Problem) -> None:
    assert plan(problem, policy=SEARCH, budget_s=HANGS_S).makespan_s == pytest.approx(best_makespan_s(problem))


def test_it_waits_for_a_wider_slot_when_that_pays() -> None:
    """The wide op could start at once on one core and would take ten times as long."""
    problem = problem_of([{1: 1.0}, {1: 20.0, 2: 2.0}], cores=2)
    planned = plan(problem, policy=SEARCH)
    assert planned.makespan_s == 3.0
    assert planned.by_id()["b"].threads == 2


def test_times_near_the_smallest_number_are_planned() -> None:
    """A share of them is 0: no temperature, and no unit of time."""
    problem = problem_of([{2: 5e-324}] * 3, cores=3)
    planned = plan(problem)
    check_schedule(problem.graph, planned, machine=problem.machine)
    assert planned.makespan_s == 3 * 5e-324


def random_problem(ops: int, cores: int, *, seed: int = 0) -> Problem:
    """A layered graph of jagged curves."""
    random = np.random.default_rng(seed)
    made = [
        {n: float(w * (0.1 + 0.9 / n) * random.uniform(0.9, 1.1)) for n in range(1, cores + 1)}
        for w in random.lognormal(0, 1, ops)
    ]
    edges = [(int(random.integers(max(0, i - 8), i)), i) for i in range(1, ops)]
    return problem_of(made, edges, cores=cores)


@pytest.mark.usefixtures("few_moves")
@pytest.mark.parametrize("ops", [30, 3500])
def test_the_same_seed_gives_the_same_plan(ops: int) -> None:
    problem = random_problem(ops, 8)
    first, again = (plan(problem, policy=SEARCH, budget_s=HANGS_S, seed=1) for _ in range(2))
    assert first == again
    check_schedule(problem.graph, first, machine=problem.machine)


def test_a_budget_that_is_over_still_gives_a_whole_plan() -> None:
    """So it is for 100,000 ops, whose lower bound takes longer than the budget; one after another these take 180 s."""
    problem = problem_of([{1: 1.0, 8: 0.9}] * 200, cores=8)
    found = Search(Instance.of(problem), bound_s=lower_bounds(problem).best_s, deadline_s=-math.inf).run()
    assert found[0].makespan_s == 25.0
    check_schedule(problem.graph, plan(problem, policy=SEARCH, budget_s=1e-9), machine=problem.machine)


@pytest.mark.parametrize("option", [{"seed": 1}, {"budget_s": 1.0}])
def test_options_of_the_search_are_refused_where_a_policy_is_named(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="are the search's"):
        plan(random_problem(3, 2), policy="fifo", **option)


@pytest.mark.parametrize("budget_s", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_bounds_nothing_is_refused(budget_s: float) -> None:
    with pytest.raises(InvalidInput, match="budget_s"):
        plan(random_problem(3, 2), budget_s=budget_s)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), slack=st.floats(1.0, 3.0))
def test_balanced_allotments_keep_every_path_within_the_limit(problem: Problem, slack: float) -> None:
    instance = Instance.of(problem)
    limit_s = lower_bounds(problem, lp=False).critical_path_s * slack
    seconds = instance.times(balanced(instance, limit_s, np.full(instance.n_ops, instance.cores, dtype=np.int64)))
    path_s = dict.fromkeys(range(instance.n_ops), 0.0)
    for op in reversed(problem.graph.topological_order):
        path_s[op] = seconds[op] + max((path_s[after] for after in problem.graph.successors[op]), default=0.0)
    assert max(path_s.values()) <= limit_s * (1 + 1e-9)


def test_plans_are_compared_by_what_they_take_under_interference_and_policies_search_with_it() -> None:
    class Crowding(CoreSharing):
        """Ops at the same time are so slow that one after the other is best."""

        def slowdowns(self, running: Sequence[Running]) -> list[float]:
            count = len(running)
            return [8.0 if count > 1 else 1.0] * count

    problem = problem_of([{1: 1.0, 2: 0.6}] * 2, cores=2)
    assert plan(problem).makespan_s == 1.0
    crowded = plan(problem, interference=Crowding(problem.machine))
    assert crowded.makespan_s == pytest.approx(1.2)
    flat = problem_of([{1: 1.0, 4: 1.0}] * 4)
    assert plan(flat, policy="manual_grid").makespan_s == 1.0
    assert plan(flat, policy="manual_grid", interference=Crowding(flat.machine)).makespan_s == 4.0


def test_without_numba_plans_and_allotments_are_the_same() -> None:
    program = """
import sys
sys.modules["numba"] = None
from tests.scheduler.search.test_search import random_problem
from threadcast.scheduler.planner import plan
from threadcast.scheduler.kernels.compiled import COMPILED
from threadcast.scheduler.policies.cpa import Cpa
print(COMPILED, plan(random_problem(5, 3), policy="search", budget_s=600.0).makespan_s)
print(Cpa(random_problem(60, 8)).allotment.tolist())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    makespan_s = plan(random_problem(5, 3), policy=SEARCH, budget_s=HANGS_S).makespan_s
    assert done.stdout == f"False {makespan_s}\n{Cpa(random_problem(60, 8)).allotment.tolist()}\n"


def test_loops_are_compiled_where_the_machine_code_cannot_be_kept() -> None:
    numba = pytest.importorskip("numba")
    made: dict[str, Any] = {}
    exec("def twice(x): return 2 * x", made)  # of no file, beside which numba would keep it
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(made["twice"])
    assert compiled(made["twice"])(2) == 4
