"""Plans are made until one takes as long as it predicts, and a much slower one is not used."""

from __future__ import annotations

import pytest

from threadcast.core import Case
from threadcast.runtime.plans.curves_in_step import STEPS, WARM_UP
from threadcast.runtime.tuning.plan_search import MOST_PLANS, Meanwhile, PlanSearch, Probe, Try
from threadcast.runtime.tuning.states import IllegalMove, State

CASES = (Case(1), Case(2))


def take(search: PlanSearch, step_s: float, steps: int = WARM_UP + STEPS) -> list[bool]:
    """Observe so many steps, which must all have one runner; whether each asked for a plan."""
    runner, asked = search.next_runner(), []
    for _ in range(steps):
        assert search.next_runner() == runner
        asked.append(search.observe(step_s))
    return asked


def probed(seconds: tuple[float, float] = (1.0, 2.0)) -> PlanSearch:
    search = PlanSearch(CASES)
    assert not any(take(search, seconds[0]))
    assert take(search, seconds[1]) == [False] * (WARM_UP + STEPS - 1) + [True]
    return search


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (2.0, 1.0)])
def test_the_fastest_probe_runs_until_there_is_a_plan(seconds: tuple[float, float]) -> None:
    search = probed(seconds)
    assert search.moves.state is State.PLANNING
    fastest = CASES[seconds.index(1.0)]
    assert search.next_runner() == Meanwhile(Probe(fastest))
    assert not any(take(search, 9.0, steps=100)), "steps meanwhile count for nothing"
    search.planned(1.0)
    assert search.next_runner() == Try(0)


@pytest.mark.parametrize(
    ("predicted_s", "taken_s", "best"),
    [
        ([1.0], [1.04], 0),
        ([1.0, 1.5], [1.5, 1.52], 1),
        ([1.0, 1.1, 1.2, 1.3], [2.0, 2.0, 2.0, 2.06], 3),
        ([1.0, 1.1, 1.2, 1.3], [2.0, 2.5, 2.0, 2.6], 2),
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
        assert take(search, taken)[-1] == (not last)
        if not last:
            assert search.next_runner() == Meanwhile(Try(number))
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
    take(search, 1.0, steps=STEPS)
    assert search.step_s == [1.0]


def test_a_plan_that_nobody_asked_for_is_an_illegal_move_that_tells_its_history() -> None:
    search = PlanSearch(CASES)
    with pytest.raises(IllegalMove, match=r"probing -> trying(.|\n)*starting -> probing") as raised:
        search.planned(1.0)
    assert [move.target for move in raised.value.history] == [State.PROBING]
