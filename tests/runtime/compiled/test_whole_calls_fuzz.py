"""Whatever graphs turn out to be between calls, what is told of them is what their tournament can take."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.compiled.whole_calls import WholeCalls
from threadcast.runtime.plans.plan_store import FasterGraphs
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.events import Outlook, Place

pytestmark = pytest.mark.compared


class Part:
    """Graphs that learn in the next `left` calls or looks, and are `measuring` what runs them in the first ones."""

    def __init__(self, left: int, *, measuring: int = 0, place: Place = Place.CALL, cost_s: float = 0.0) -> None:
        self.left, self._measuring, self._next = left, measuring, Outlook(place, cost_s)
        self.disturbed = False

    @property
    def outlook(self) -> Outlook:
        return self._next if self.left > 0 else Outlook(None)

    @property
    def learning(self) -> bool:
        return self.left > 0

    @property
    def measuring(self) -> bool:
        return self._measuring > 0

    @property
    def reports(self) -> list[Part]:
        return [self]

    def look(self) -> None:
        self.left -= 1

    def ran(self) -> None:
        self.left, self._measuring = self.left - 1, self._measuring - 1


def compared(part: Part, budget: Budget, **how: Any) -> WholeCalls:
    return WholeCalls(lambda: None, [cast("GraphCalls", part)], budget, **how)


def test_graphs_of_an_earlier_process_that_are_slow_and_still_learn_are_dropped_and_learn_anew() -> None:
    part, kept, now_s = Part(100, cost_s=0.01), list[FasterGraphs | None](), 0.0
    calls = compared(part, Budget(0.2), found=FasterGraphs(0.010, 0.015), keep=kept.append)
    for _ in range(6000):
        turn = calls.next_turn((), now_s=now_s)
        seconds = 0.030 if turn.by_graphs else 0.010
        if turn.by_graphs and not turn.compared:
            part.ran()
        calls.observe(started_s=now_s, seconds=seconds)
        calls.tournament.validate()
        now_s += seconds
    assert (calls.by_graphs, part.learning, kept[-1]) == (False, False, None), calls.tournament.story()


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_what_happens_makes_them_tell_what_cannot_be(seed: int) -> None:
    some = random.Random(seed)
    part = Part(
        some.randint(0, 60),
        measuring=some.randint(0, 20),
        place=some.choice([Place.CALL, Place.BESIDE]),
        cost_s=some.choice([0.0, 0.001, 0.5]),
    )
    found = FasterGraphs(0.010, 0.015) if some.random() < 0.5 else None
    calls, now_s = compared(part, Budget(some.choice([0.02, 0.2, 1.0])), found=found), 0.0
    seconds_by = dict[bool, float]()
    for _ in range(800):
        turn = calls.next_turn((), now_s=now_s)
        calls.tournament.validate()
        if some.random() < 0.004:
            seconds_by.clear()
        part.disturbed = some.random() < 0.02
        seconds = seconds_by.setdefault(turn.by_graphs, some.choice([0.005, 0.01, 0.02, 0.05])) * some.uniform(
            0.97, 1.03
        )
        if turn.by_graphs:
            part.ran()
        if turn.counts:
            calls.observe(started_s=now_s, seconds=seconds)
            calls.tournament.validate()
        now_s += seconds
