"""Plans are made until one takes as long as it predicts, and a much slower one is not used."""

from __future__ import annotations

import pytest

from threadcast.core import Case
from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.curves_in_step import ENOUGH_S, LEAST_STEPS, TRIAL_STEPS, WARM_UP, LookSchedule
from threadcast.runtime.tuner.plan_search import MOST_PLANS, Look, Phase, PlanSearch, Try

LOOKS = LookSchedule((Case(2), Case(1)), 2, 5)
MS = 1e-3
"""Seconds of one here: looks at steps so short take all their steps."""


def take(search: PlanSearch, step_s: float, steps: int | None = None) -> int:
    """Observe so many steps (None: all of a look or trial), in units of `MS`; their number. They have one runner."""
    step, count = search.next, 0
    while steps is None or count < steps:
        assert search.next == step
        search.observe(step_s * MS)
        count += 1
        if not search.begun:
            break
    assert steps in (None, count)
    return count


def looked(seconds: tuple[float, float] = (1.0, 2.0)) -> PlanSearch:
    """A search that has taken its first looks, and wants a plan."""
    search = PlanSearch(LOOKS)
    for step_s in seconds:
        assert (search.phase, take(search, step_s)) == (Phase.LOOKING, WARM_UP + LOOKS.steps)
    assert search.phase is Phase.PLANNING
    return search


def test_one_more_look_is_taken_where_it_is_asked_for() -> None:
    search = looked()
    search.look_again()
    assert search.next == Look(2)
    take(search, 1.5)
    assert (search.phase, search.look_s) == (Phase.PLANNING, [1.0 * MS, 2.0 * MS, 1.5 * MS])


def test_with_known_operators_a_plan_comes_before_looks_which_follow_where_it_does_not_hold() -> None:
    for taken_s, phase in ((1.04, Phase.OVER), (2.0, Phase.LOOKING)):
        search = PlanSearch(LOOKS, known=True)
        search.planned(1.0 * MS)
        take(search, taken_s)
        assert search.phase is phase
    for step_s in (3.0, 4.0):
        take(search, step_s)
    search.planned(1.5 * MS)
    take(search, 1.5)
    assert (search.look_s, search.best) == ([3.0 * MS, 4.0 * MS], 1)


def test_only_a_first_look_that_is_far_slower_is_hopeless() -> None:
    search = PlanSearch(LOOKS)
    take(search, 1.6)
    assert (search.hopeless(1.0 * MS), search.hopeless(1.1 * MS)) == (True, False)
    take(search, 9.0)
    assert not search.hopeless(1.0 * MS), "plans depend on all looks"


def test_only_a_first_plan_is_too_slow_by_what_it_predicts() -> None:
    search = looked()
    assert (search.too_slow(1.06 * MS, 1.0 * MS), search.too_slow(1.04 * MS, 1.0 * MS)) == (True, False)
    search.planned(1.0 * MS)
    take(search, 1.5)
    assert not search.too_slow(9.0 * MS, 1.0 * MS)


@pytest.mark.parametrize(
    ("predicted_s", "taken_s", "best"),
    [
        ([1.0], [1.04], 0),
        ([1.0, 1.3], [1.5, 1.33], 1),
        ([1.0, 1.1, 1.2], [2.0, 2.0, 2.06], 2),
        ([1.0, 1.1, 1.2], [2.5, 2.0, 2.6], 1),
    ],
)
def test_plans_are_made_until_one_holds_and_a_much_slower_one_is_not_used(
    predicted_s: list[float], taken_s: list[float], best: int
) -> None:
    search = looked()
    for number, (predicted, taken) in enumerate(zip(predicted_s, taken_s, strict=True)):
        assert (search.phase, search.best) == (Phase.PLANNING, None)
        search.planned(predicted * MS)
        assert search.next == Try(number)
        assert take(search, taken) == WARM_UP + TRIAL_STEPS
    assert (search.phase, search.best, len(predicted_s) <= MOST_PLANS) == (Phase.OVER, best, True)


def test_a_corrected_plan_that_does_not_promise_to_be_far_faster_is_not_tried() -> None:
    search = looked()
    search.planned(1.0 * MS)
    take(search, 1.5)
    search.planned(1.4 * MS)
    assert (search.phase, search.best, search.step_s) == (Phase.OVER, 0, [1.5 * MS])


def test_disturbed_steps_of_a_trial_are_no_reason_for_another_plan() -> None:
    for tried, predicted_s in [((1.04, 1.5, 1.6), None), ((1.3, 1.9, 2.0), 1.2)]:
        search = looked()
        search.planned(1.0 * MS)
        for step_s in (9.0, *tried):
            search.observe(step_s * MS)
        assert (search.phase is Phase.PLANNING) == (predicted_s is not None)
        if predicted_s is not None:
            search.planned(predicted_s * MS)
        assert search.best == 0


@pytest.mark.parametrize(("step_s", "timed"), [(2 * ENOUGH_S, LEAST_STEPS), (ENOUGH_S / 4, 4), (MS, LOOKS.steps)])
def test_a_look_at_long_steps_takes_fewer_and_a_trial_does_not(step_s: float, timed: int) -> None:
    search = PlanSearch(LookSchedule((Case(2),), 1, LOOKS.steps))
    assert (search.steps(step_s), take(search, step_s / MS)) == (WARM_UP + timed, WARM_UP + timed)
    search.planned(step_s)
    assert (search.steps(step_s), take(search, step_s / MS)) == (WARM_UP + TRIAL_STEPS, WARM_UP + TRIAL_STEPS)


def test_a_look_that_runs_aside_takes_one_step_and_a_trial_all_of_its() -> None:
    search = PlanSearch(LOOKS, aside=True)
    assert [take(search, 2.0), take(search, 3.0)] == [1, 1]
    assert search.look_s == [2.0 * MS, 3.0 * MS]
    search.planned(2.0 * MS)
    assert take(search, 2.0) == WARM_UP + TRIAL_STEPS


@pytest.mark.parametrize(("looked_s", "far"), [(1.2, True), (1.05, False)])
def test_a_plan_is_far_faster_than_eager_where_it_is_than_the_first_look(looked_s: float, far: bool) -> None:
    search = looked((looked_s, 0.5))
    search.planned(1.0 * MS)
    assert not search.far_faster, "not before the plan was tried"
    take(search, 1.0)
    assert search.far_faster == far


def test_a_trial_that_shows_nothing_new_ends_the_search() -> None:
    search = looked()
    search.planned(1.0 * MS)
    take(search, 3.0)
    assert search.phase is Phase.PLANNING
    search.nothing_to_correct()
    assert (search.phase, search.best) == (Phase.OVER, 0)


def test_warm_up_steps_do_not_count() -> None:
    search = looked()
    search.planned(1.0 * MS)
    take(search, 50.0, steps=WARM_UP)
    take(search, 1.0, steps=TRIAL_STEPS)
    assert search.step_s == [1.0 * MS]


def test_a_look_that_was_broken_off_begins_once_more() -> None:
    search = PlanSearch(LOOKS)
    search.break_off()
    assert (search.begun, search.broken_off_s) == (False, None)
    take(search, 9.0, steps=3)
    assert search.begun
    search.break_off()
    search.break_off()
    assert (search.begun, search.broken_off_s, search.next) == (False, 9.0 * MS, Look(0))
    take(search, 1.0)
    assert (search.look_s, search.broken_off_s) == ([1.0 * MS], None)


def test_what_nobody_asked_for_is_illegal() -> None:
    with pytest.raises(ExecutionError, match=r"illegal: .* while looking"):
        PlanSearch(LOOKS).planned(1.0)
    with pytest.raises(ExecutionError, match=r"illegal: .* while planning"):
        looked().observe(1.0)
