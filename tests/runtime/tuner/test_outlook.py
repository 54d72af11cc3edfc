"""Who decides whether calls come to a tournament at all knows what it learns next; and what computes beside calls."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.conftest import SequentialPlanner
from tests.runtime.tuner.simulated_calls import DEFAULT, Calls, Part, Way, plan
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Machine
from threadcast.runtime.plans.step_forecasts import Question
from threadcast.runtime.tuner import planning
from threadcast.runtime.tuner.budget import FIRST_S, Budget, PartBudget
from threadcast.runtime.tuner.events import Outlook, Place
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


def test_what_is_learned_next_takes_place_in_calls_beside_them_or_nowhere() -> None:
    calls = Calls({"plan": Way(0.5, (Part(Place.CALL, 0.2, 0.5, 3), Part(Place.BESIDE, calls=3)))})
    assert calls.tournament.outlook == Outlook(Place.CALL), "it is not known how long the default takes"
    seen = []
    while not (calls.tournament.settled and calls.tournament.idle):
        calls.call()
        seen.append(calls.tournament.outlook.place)
    places = [place for place, before in zip(seen, [None, *seen], strict=False) if place is not before]
    assert places == [Place.CALL, Place.BESIDE, Place.CALL, None]


def test_what_cannot_be_afforded_says_what_it_costs() -> None:
    calls = Calls({"plan": plan(0.5)}, offer=False, budget=Budget(0.05))
    calls.offer("plan", cost_s=100.0)
    calls.call(20)
    assert calls.tournament.outlook == Outlook(Place.CALL, 100.0)
    assert set(calls.ran) == {DEFAULT}


def test_what_lost_while_something_computed_beside_it_is_compared_again_once_nothing_does() -> None:
    """A plan waits for the slowest of its cores, so that it suffers more than PyTorch's operators."""
    calls = Calls({"ready": Way(1.2)})
    calls.call(5)
    while calls.compared("ready") == 0:
        calls.call(alone=False)
    calls.call(20, alone=False)
    assert (calls.best, calls.compared("ready")) == (DEFAULT, 1)
    calls.ways["ready"].seconds = 0.5
    calls.call(60)
    assert (calls.best, calls.compared("ready")) == ("ready", 2)


def test_what_lost_alone_is_not_compared_again() -> None:
    calls = Calls({"ready": Way(1.2)})
    calls.settle()
    calls.call(30, alone=False)
    calls.call(60)
    assert calls.compared("ready") == 1


def test_it_becomes_known_how_long_the_default_takes_though_something_computes_beside_all_calls() -> None:
    calls = Calls({"ready": Way(0.5)})
    calls.call(60, alone=False)
    assert calls.best == "ready"


def test_parts_of_calls_spend_of_the_whole_budget_and_count_where_whole_calls_are_not_timed() -> None:
    whole = Budget(0.1)
    part = PartBudget(whole)
    part.counts = False
    part.ran(2.0, eager_s=1.0)
    part.ran_eager(1.0)
    part.charge(1.0)
    assert (whole.left_s, part.left_s) == (FIRST_S, FIRST_S)
    part.counts = True
    part.ran(2.0, eager_s=1.0)
    assert part.left_s == whole.left_s == pytest.approx(FIRST_S + 0.1 - 1.0)
    with whole.without_limit():
        assert part.unlimited


def test_a_plan_that_is_made_for_another_model_disturbs_as_long_as_plans_take(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    """A model that is not called any more asks for no answer, and disturbs no other one for ever."""
    monkeypatch.setattr(planning, "ForecastingPlanner", SequentialPlanner)
    now_s = [0.0]
    mine, other = (planning.Planner(machine, clock=lambda: now_s[0]) for _ in range(2))
    assert not mine.works
    other.ask(Question(capture_forward(lambda x: x * 2, torch.ones(3)).graph, machine, NATIVE_ENGINE, {}))
    assert mine.works
    now_s[0] = planning.PATIENCE_S * len(machine) + 0.1
    assert not mine.works
    now_s[0] = 0.0
    assert mine.works
    other.close()
    assert not mine.works
