"""The best single thread count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.scheduler.random_problems import problem_of, problems
from threadcast.core.errors import PlanError
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.uniform_width import best_width, team_times


@settings(deadline=None)
@given(problem=problems())
def test_the_best_width_is_that_of_the_least_sum(problem: Problem) -> None:
    sums = {width: float(team_times(problem, width)[1].sum()) for width in problem.times.counts}
    width, positions, seconds = best_width(problem)
    assert width == min(sums, key=sums.__getitem__)
    assert (positions.tolist(), seconds.tolist()) == tuple(part.tolist() for part in team_times(problem, width))


def test_widths_at_which_some_op_cannot_run_are_left_out() -> None:
    problem = problem_of([{1: 1.0, 2: 1.5, 4: 5.0}, {2: 1.0, 3: 0.9}, {2: 0.0, 4: 0.0}], kinds="xyv")
    with pytest.raises(PlanError, match="teams of 1 cannot run it"):
        team_times(problem, 1)
    assert best_width(problem)[0] == 2
