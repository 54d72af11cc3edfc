"""Plans are made until one takes as long as it predicts, and a much slower one is not used."""

from __future__ import annotations

import pytest

from threadcast.runtime.plans.curves_in_step import TRIAL_STEPS, WARM_UP
from threadcast.runtime.tuning.plan_search import MOST_PLANS, Look, PlanSearch, Try
from threadcast.runtime.tuning.states import IllegalMove, State

LOOKS, LOOK_STEPS = 2, 5


def take(search: PlanSearch, step_s: float, steps: int | None = None) -> list[bool]:
    """Observe so many steps (None: all of a look or trial), which must all have one runner; whether each asked for a
    plan."""
    runner, asked = search.next_runner(), []
    for _ in range(search.steps if steps is None else steps):
        assert search.next_runner() == runner
        asked.append(search.observe(step_s))
    return asked


def probed(seconds: tuple[float, float] = (1.0, 2.0)) -> PlanSearch:
    search = PlanSearch(LOOKS, look_steps=LOOK_STEPS)
    assert not any(take(search, seconds[0]))
    assert take(search, seconds[1]) == [False] * (WARM_UP + LOOK_STEPS - 1) + [True]
    return search


def test_one_more_look_is_taken_where_it_is_asked_for() -> None:
    search = probed()
    search.look_again()
    assert search.next_runner() == Look(2)
    assert take(search, 1.5)[-1]
    assert search.look_s == [1.0, 2.0, 1.5]


def test_only_a_first_look_that_is_far_slower_is_hopeless() -> None:
    search = PlanSearch(LOOKS, look_steps=LOOK_STEPS)
    take(search, 1.6)
    assert (search.hopeless(1.0), search.hopeless(1.1)) == (True, False)
    take(search, 9.0)
    assert not search.hopeless(1.0), "plans depend on all looks"


@pytest.mark.parametrize(
    ("predicted_s", "taken_s", "best"),
    [
        ([1.0], [1.04], 0),
        ([1.0, 1.5], [1.5, 1.52], 1),
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
        search.planned(predicted)
        last = number + 1 == len(predicted_s)
        assert search.next_runner() == Try(number)
        assert take(search, taken)[-1] == (not last)
    assert (search.best, len(predicted_s) <= MOST_PLANS) == (best, True)


def test_a_trial_that_shows_nothing_new_ends_the_search() -> None:
    search = probed()
    search.planned(1.0)
    assert take(search, 3.0)[-1]
    search.nothing_to_correct()
    assert search.best == 0


def test_warm_up_steps_do_not_count() -> None:
    search = probed()
    search.planned(1.0)
    take(search, 50.0, steps=WARM_UP)
    take(search, 1.0, steps=TRIAL_STEPS)
    assert search.step_s == [1.0]


def test_a_look_that_was_broken_off_begins_once_more() -> None:
    search = PlanSearch(LOOKS, look_steps=LOOK_STEPS)
    search.break_off()
    assert (search.begun, search.broken_off_s) == (False, None)
    take(search, 9.0, steps=3)
    assert (search.begun, search.at_start) == (True, False)
    search.break_off()
    search.break_off()
    assert (search.begun, search.at_start, search.broken_off_s) == (False, True, 9.0)
    assert search.next_runner() == Look(0)
    take(search, 1.0)
    assert (search.look_s, search.broken_off_s) == ([1.0], None)


def test_a_plan_that_nobody_asked_for_is_an_illegal_move_that_tells_its_history() -> None:
    search = PlanSearch(LOOKS, look_steps=LOOK_STEPS)
    with pytest.raises(IllegalMove, match=r"probing -> trying(.|\n)*waiting -> probing") as raised:
        search.planned(1.0)
    assert [move.target for move in raised.value.history] == [State.PROBING]
