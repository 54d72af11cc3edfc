"""Plans are made until one takes as long as it predicts, and a much slower one is not used."""

from __future__ import annotations

import pytest

from threadcast.core import Case
from threadcast.runtime.plans.curves_in_step import ENOUGH_S, LEAST_STEPS, TRIAL_STEPS, WARM_UP, LookSchedule
from threadcast.runtime.tuner.plan_search import MOST_PLANS, Look, PlanSearch, Try
from threadcast.runtime.tuner.states import IllegalMove, State

LOOKS = LookSchedule((Case(2), Case(1)), 2, 5)
MS = 1e-3
"""Seconds of one here: looks at steps so short take all their steps."""


def take(search: PlanSearch, step_s: float, steps: int | None = None) -> list[bool]:
    """Observe so many steps (None: all of a look or trial), which must all have one runner; whether each asked for a
    plan. Seconds are in units of `MS`."""
    runner, asked = search.next_runner(), []
    for _ in range(search.steps(step_s * MS) if steps is None else steps):
        assert search.next_runner() == runner
        asked.append(search.observe(step_s * MS))
    return asked


def probed(seconds: tuple[float, float] = (1.0, 2.0)) -> PlanSearch:
    search = PlanSearch(LOOKS)
    assert not any(take(search, seconds[0]))
    assert take(search, seconds[1]) == [False] * (WARM_UP + LOOKS.steps - 1) + [True]
    return search


def test_one_more_look_is_taken_where_it_is_asked_for() -> None:
    search = probed()
    search.look_again()
    assert search.next_runner() == Look(2)
    assert take(search, 1.5)[-1]
    assert search.look_s == [1.0 * MS, 2.0 * MS, 1.5 * MS]


def test_only_a_first_look_that_is_far_slower_is_hopeless() -> None:
    search = PlanSearch(LOOKS)
    take(search, 1.6)
    assert (search.hopeless(1.0 * MS), search.hopeless(1.1 * MS)) == (True, False)
    take(search, 9.0)
    assert not search.hopeless(1.0 * MS), "plans depend on all looks"


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
    search = probed()
    for number, (predicted, taken) in enumerate(zip(predicted_s, taken_s, strict=True)):
        assert search.best is None
        search.planned(predicted * MS)
        last = number + 1 == len(predicted_s)
        assert search.next_runner() == Try(number)
        assert take(search, taken)[-1] == (not last)
    assert (search.best, len(predicted_s) <= MOST_PLANS) == (best, True)


def test_a_corrected_plan_that_does_not_promise_to_be_far_faster_is_not_tried() -> None:
    search = probed()
    search.planned(1.0 * MS)
    assert take(search, 1.5)[-1]
    search.planned(1.4 * MS)
    assert (search.best, search.step_s) == (0, [1.5 * MS])


def test_disturbed_steps_of_a_trial_are_no_reason_for_another_plan() -> None:
    for tried, predicted_s in [((1.04, 1.5, 1.6), None), ((1.3, 1.9, 2.0), 1.2)]:
        search = probed()
        search.planned(1.0 * MS)
        for step_s in (9.0, *tried):
            wants_plan = search.observe(step_s * MS)
        assert wants_plan == (predicted_s is not None)
        if predicted_s is not None:
            search.planned(predicted_s * MS)
        assert search.best == 0


@pytest.mark.parametrize(("step_s", "timed"), [(2 * ENOUGH_S, LEAST_STEPS), (ENOUGH_S / 4, 4), (MS, LOOKS.steps)])
def test_a_look_at_long_steps_takes_fewer_and_a_trial_does_not(step_s: float, timed: int) -> None:
    search, steps = PlanSearch(LookSchedule((Case(2),), 1, LOOKS.steps)), 1
    while not search.observe(step_s):
        steps += 1
    assert steps == WARM_UP + timed
    search.planned(step_s)
    steps = 1
    while search.observe(step_s) or search.best is None:
        steps += 1
    assert steps == WARM_UP + TRIAL_STEPS


def test_a_look_that_runs_aside_takes_one_step_and_a_trial_all_of_its() -> None:
    search = PlanSearch(LOOKS, aside=True)
    assert [take(search, 2.0), take(search, 3.0)] == [[False], [True]]
    assert search.look_s == [2.0 * MS, 3.0 * MS]
    search.planned(2.0 * MS)
    assert len(take(search, 2.0)) == WARM_UP + TRIAL_STEPS


@pytest.mark.parametrize(("looked_s", "far"), [(1.2, True), (1.05, False)])
def test_a_plan_is_far_faster_than_eager_where_it_is_than_the_first_look(looked_s: float, far: bool) -> None:
    search = probed((looked_s, 0.5))
    search.planned(1.0 * MS)
    assert not search.far_faster, "not before the plan was tried"
    take(search, 1.0)
    assert search.far_faster == far


def test_a_trial_that_shows_nothing_new_ends_the_search() -> None:
    search = probed()
    search.planned(1.0 * MS)
    assert take(search, 3.0)[-1]
    search.nothing_to_correct()
    assert search.best == 0


def test_warm_up_steps_do_not_count() -> None:
    search = probed()
    search.planned(1.0 * MS)
    take(search, 50.0, steps=WARM_UP)
    take(search, 1.0, steps=TRIAL_STEPS)
    assert search.step_s == [1.0 * MS]


def test_a_look_that_was_broken_off_begins_once_more() -> None:
    search = PlanSearch(LOOKS)
    search.break_off()
    assert (search.begun, search.broken_off_s) == (False, None)
    take(search, 9.0, steps=3)
    assert (search.begun, search.at_start) == (True, False)
    search.break_off()
    search.break_off()
    assert (search.begun, search.at_start, search.broken_off_s) == (False, True, 9.0 * MS)
    assert search.next_runner() == Look(0)
    take(search, 1.0)
    assert (search.look_s, search.broken_off_s) == ([1.0 * MS], None)


def test_a_plan_that_nobody_asked_for_is_an_illegal_move_that_tells_its_history() -> None:
    search = PlanSearch(LOOKS)
    with pytest.raises(IllegalMove, match=r"probing -> trying(.|\n)*waiting -> probing") as raised:
        search.planned(1.0)
    assert [move.target for move in raised.value.history] == [State.PROBING]
