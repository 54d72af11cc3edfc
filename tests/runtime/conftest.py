"""The machine to run plans on, and teams of it that a file's tests share."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import threadcast
from tests.runtime.random_plans import made_up_curves
from tests.runtime.small_training import Net, net, sgd
from threadcast.core import Machine, read_machine
from threadcast.runtime.calls.shared_learning import budget, planner_on
from threadcast.runtime.doors.optimize import OptimizedStep
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Answer, Question
from threadcast.runtime.tuner import candidates, first_steps, looks, plan_candidate, planning, rounds, standings
from threadcast.runtime.tuner.candidate import CandidateId, Kind
from threadcast.runtime.tuner.events import Instructions, Next, Ran, Run
from threadcast.runtime.tuner.guard import Verdict
from threadcast.runtime.tuner.standings import Standing
from threadcast.runtime.tuner.tournament import Tournament


@pytest.fixture(autouse=True)
def plans_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of kept plans, empty."""
    directory = tmp_path / "plans"
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(directory))
    return directory


@pytest.fixture(autouse=True)
def every_fifth_step_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth optimised call and step is run by PyTorch too, and stops the test where the results differ."""
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "5")


@pytest.fixture(autouse=True)
def learning_at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are captured at once, however short they are, and learning may take any time and stores nothing."""
    budget.cache_clear()
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "1")


@pytest.fixture(autouse=True)
def learning_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits until it is known how long PyTorch takes."""
    monkeypatch.setattr(standings, "are_steady", lambda _: True)


@pytest.fixture(autouse=True)
def nobody_else_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of other processes, so that these decide nothing."""
    monkeypatch.setattr(rounds, "_cpu_times", lambda: None)


@pytest.fixture(autouse=True)
def nothing_planned() -> None:
    """No plan that a test before has asked for disturbs calls."""
    planner_on.cache_clear()


@pytest.fixture(scope="session")
def machine() -> Machine:
    """At most two cores of this machine: the more teams, the longer the tests."""
    found = read_machine()
    return found.limited_to([core.id for core in found.cores[:2]])


class SequentialPlanner:
    """In place of the planner's process: at its second look there is a plan of one op after the other."""

    def __init__(self, *, cpus: Collection[int], compiles: bool, background: bool) -> None:
        """Nothing to start."""
        assert background, "steps want its core"
        self.compiles, self.waits = compiles, 0

    def wait(self, timeout_s: float) -> None:
        """Count how often it is waited for."""
        self.waits += 1

    def ask_forecast(self, question: Question) -> None:
        """Begin with another problem."""
        self._question, self._looks = question, 0

    def forecast(self) -> Answer | None:
        """The plan, from the second look on."""
        self._looks += 1
        if self._looks < 2:
            return None
        graph, machine = self._question.graph, self._question.machine
        curves = self._question.curves or made_up_curves(graph, machine)  # on many cores not all cases are measured
        plan = sequential(graph, machine, curves.cases[0])
        return Answer(plan, curves, plan.makespan_s)

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look and no forecast ends a search or a comparison: nothing that is tried depends on the machine's speed."""
    monkeypatch.setattr(looks, "HOPELESS", math.inf)
    monkeypatch.setattr(plan_candidate, "SLOWER", math.inf)
    monkeypatch.setattr(standings, "WORTH", 0.0)


@pytest.fixture
def planned_at_once(monkeypatch: pytest.MonkeyPatch, nothing_is_left_out: None) -> None:
    """Plans come without another process, and nothing is left out."""
    monkeypatch.setattr(planning, "ForecastingPlanner", SequentialPlanner)


@pytest.fixture
def looks_run_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at training steps take the place of the caller's, as in inference, so that graphs run from the first on."""
    monkeypatch.setattr(first_steps, "looks_aside", lambda _: False)


class Decided(Tournament):
    """All that is ready is compared once, and wins at its first step where it is a plan: no time decides anything."""

    def wins(self, new: CandidateId) -> bool:
        """Whether it wins over the best before it."""
        return new.kind is Kind.PLAN

    def promised(self, standing: Standing, *, most: bool = False) -> float:
        """However slow its first steps were, a candidate is worth a comparison."""
        return 2.0

    def _next_compared(self, comparison: Any, event: Next) -> Instructions:
        return (
            super()._next_compared(comparison, event)
            if event.disturbed
            else self._choose(Run(comparison.new), counts=True)
        )

    def _observe(self, comparison: Any, event: Ran) -> Instructions:
        return self._judge(comparison, Verdict(1.0, 1.0, 1.0, 3, "plan" if self.wins(comparison.new) else "default"))

    def second(self, *, under_s: float | None = None) -> None:
        """Nothing is compared anew."""


class DefaultWins(Decided):
    """The default runs all calls in the end."""

    def wins(self, new: CandidateId) -> bool:
        """Whether it wins over the best before it."""
        return False


@pytest.fixture
def plans_win(planned_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning settles on a plan, whichever is faster."""
    monkeypatch.setattr(candidates, "Tournament", Decided)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Kernels of one thread add up in one order, so that results can be compared closely."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def trained(one_thread: None) -> Iterator[tuple[OptimizedStep, Net, torch.optim.Optimizer, Net, torch.optim.Optimizer]]:
    """An optimised step with its model and optimizer, and the same model and optimizer for eager training."""
    mine, eager = net(), net()
    my_optimizer, eager_optimizer = sgd(mine), sgd(eager)
    with closing(threadcast.optimize_training(mine, cross_entropy, my_optimizer)) as step:
        yield step, mine, my_optimizer, eager, eager_optimizer
