"""Looks take the steps that tell something, and end where no plan can be worth it."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Case, Machine
from threadcast.runtime.plans.curves_in_step import ENOUGH_S, LEAST_STEPS, WARM_UP, LookSchedule
from threadcast.runtime.tuner.looks import Looks

CAPTURED, MACHINE = capture_forward(lambda x: x * 2, torch.ones(3)), Machine.uniform("two", 2)
LOOKS = LookSchedule((Case(2), Case(1)), 2, 5)
MS = 1e-3
"""Seconds of one here: looks at steps so short take all their steps."""


def take(looks: Looks, step_s: float) -> int:
    """Observe a look whose steps take so many `MS`; the number of these."""
    count = 1
    while not looks.observe(step_s * MS):
        count += 1
    return count


def test_looks_are_taken_until_a_plan_can_be_made_and_where_one_more_is_asked_for() -> None:
    looks = Looks(CAPTURED, MACHINE, schedule=LOOKS)
    assert [take(looks, 1.0), looks.complete, take(looks, 2.0), looks.complete] == [6, False, 6, True]
    looks.ask_for_more((Case(1),))
    assert not looks.complete
    take(looks, 1.5)
    assert (looks.complete, looks.look_s) == (True, [1.0 * MS, 2.0 * MS, 1.5 * MS])


def test_only_a_first_look_that_is_far_slower_is_hopeless() -> None:
    looks = Looks(CAPTURED, MACHINE, schedule=LOOKS)
    take(looks, 1.6)
    assert (looks.hopeless(1.0 * MS), looks.hopeless(1.1 * MS)) == (True, False)
    take(looks, 9.0)
    assert not looks.hopeless(1.0 * MS), "plans depend on all looks"


@pytest.mark.parametrize(("step_s", "timed"), [(2 * ENOUGH_S, LEAST_STEPS), (ENOUGH_S / 4, 4), (MS, LOOKS.steps)])
def test_a_look_at_long_steps_takes_fewer(step_s: float, timed: int) -> None:
    looks = Looks(CAPTURED, MACHINE, schedule=LookSchedule((Case(2),), 1, LOOKS.steps))
    assert (looks.steps(step_s), take(looks, step_s / MS)) == (WARM_UP + timed, WARM_UP + timed)


def test_a_look_that_runs_aside_takes_one_step_and_none_warms_up() -> None:
    looks = Looks(CAPTURED, MACHINE, schedule=LOOKS, aside=True)
    assert [take(looks, 2.0), take(looks, 3.0)] == [1, 1]
    assert looks.look_s == [2.0 * MS, 3.0 * MS]


def test_warm_up_steps_do_not_count() -> None:
    looks = Looks(CAPTURED, MACHINE, schedule=LOOKS)
    looks.observe(50.0)
    take(looks, 1.0)
    assert looks.look_s == [1.0 * MS]


def test_a_look_that_was_broken_off_begins_once_more() -> None:
    looks = Looks(CAPTURED, MACHINE, schedule=LOOKS)
    looks.break_off()
    assert (looks.begun, looks.broken_off_s) == (False, None)
    for _ in range(3):
        looks.observe(9.0 * MS)
    assert looks.begun
    looks.break_off()
    looks.break_off()
    assert (looks.begun, looks.broken_off_s, looks.look_s) == (False, 9.0 * MS, [])
    take(looks, 1.0)
    assert (looks.look_s, looks.broken_off_s) == ([1.0 * MS], None)


def test_what_a_look_has_shown_is_forgotten_when_it_begins_once_more() -> None:
    with closing(Looks(CAPTURED, MACHINE.limited_to([0]), schedule=LookSchedule((Case(1),), 1, 5))) as looks:
        timed = []
        for begins in (True, False, False, True, False):
            if begins:
                looks.break_off()
            looks.open()
            _, seconds = looks.run(torch.ones(3))
            looks.observe(seconds)
            of_cases = [seconds for observed in looks.observed.values() for seconds in observed.values()]
            timed.append(sum(map(len, of_cases)))
    assert timed == [0, 1, 2, 0, 1], "the first step warms up"
