"""Plans are made for the engine that runs them."""

from __future__ import annotations

import math

import pytest

from tests.scheduler.random_problems import problem_of
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import EngineCosts


def test_a_team_is_only_made_where_it_gains_more_than_it_costs() -> None:
    problem = problem_of([{1: 1.0, 2: 0.6}, {1: 10.0, 2: 6.0}], [(0, 1)], cores=2)
    dearer = Problem(problem.graph, EngineCosts(0.25, 0.5).added(problem.curves), problem.machine)
    planned = plan(dearer)
    assert {op.id: op.threads for op in planned.ops} == {"a": 1, "b": 2}
    assert planned.makespan_s == pytest.approx(1.25 + 6.75)


@pytest.mark.parametrize("cost_s", [-1.0, math.nan, math.inf])
def test_costs_that_are_none_are_refused(cost_s: float) -> None:
    with pytest.raises(InvalidInput, match="at least 0"):
        EngineCosts(cost_s, 0.0)
