"""The two-phase method with the allotment LP."""

from __future__ import annotations

import pytest

from tests.scheduler.random_problems import problem_of
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.allotment_lp import relax
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.policies.lp_rounding import LpRounding, widest_of


def threads_of(problem: Problem, **options: float) -> list[int]:
    by_id = plan(problem, policy="lp_rounding", **options).by_id()
    return [by_id[op_id].threads for op_id in problem.graph.ids]


def test_the_proof_s_widest_allotment_is_about_a_quarter_of_the_cores() -> None:
    assert [widest_of(cores) for cores in (1, 2, 4, 16, 68, 128)] == [1, 1, 1, 5, 19, 35]


def test_a_time_between_two_widths_goes_to_the_slower_one_from_rho_on() -> None:
    """On three cores each takes 24 / 7 s (see the test of the bounds), 3 / 7 of the way from 3 s to 4 s."""
    problem = problem_of([{1: 4.0, 2: 3.0}] * 2, cores=3)
    assert relax(problem).seconds == pytest.approx([24 / 7] * 2)
    assert threads_of(problem, widest=3, rho=0.42) == [1, 1]
    assert threads_of(problem, widest=3) == [2, 2]


def test_no_op_is_wider_than_allowed_unless_its_curve_offers_nothing_else() -> None:
    problem = problem_of([{1: 8.0, 2: 5.0, 3: 4.0, 8: 1.5}, {4: 2.0, 8: 0.9}], cores=8)
    assert threads_of(problem, widest=8) == [8, 8]
    assert threads_of(problem, widest=3) == [3, 4]
    assert threads_of(problem, widest=2) == [2, 4]


@pytest.mark.parametrize(
    ("options", "said"), [({"rho": 1.5}, "rho=1.5"), ({"widest": 5}, "widest=5"), ({"widest": 0}, "widest=0")]
)
def test_options_out_of_range_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        LpRounding(problem_of([{1: 1.0}], cores=4), **options)  # type: ignore[arg-type]
