"""The first step by each plan that can show something is compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from threadcast.capture.capture import capture_forward
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning import first_steps
from threadcast.runtime.tuning.contender_id import DEFAULT, backend, eager_in, plan_of
from threadcast.runtime.tuning.first_steps import FirstSteps
from threadcast.runtime.tuning.instructions import ContenderStep, Runner, SearchStep
from threadcast.runtime.tuning.plan_search import Look, Meanwhile
from threadcast.runtime.verification import shadow
from threadcast.runtime.verification.shadow import Shadowed, leaves

VARIANT = Variant(MemoryFormat.AS_GIVEN)
PLAN = ContenderStep(plan_of(VARIANT))
CAPTURED = capture_forward(lambda x: x + 1, torch.ones(2))


class Steps:
    """First steps of a call that adds 1; each run is by a step that adds 2."""

    def __init__(self) -> None:
        self.raises = False
        self.steps = FirstSteps(Shadowed(self._eager, self._eager, None, None, leaves))

    def _eager(self, x: Tensor) -> Tensor:
        if self.raises:
            raise KeyError("the caller's own")
        return x + 1

    def differs(self, runner: Runner) -> bool:
        result, difference = self.steps.run(runner, lambda x: x + 2, (torch.ones(2),), CAPTURED)
        assert result.tolist() == ([3.0, 3.0] if difference is None else [2.0, 2.0]), "eager's, where they differ"
        return difference is not None


@pytest.mark.parametrize("runner", [PLAN, ContenderStep(eager_in(MemoryFormat.CHANNELS_LAST))], ids=str)
def test_a_plan_and_another_format_are_compared_once(runner: Runner) -> None:
    steps = Steps()
    assert [steps.differs(runner) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("runner", [ContenderStep(DEFAULT), ContenderStep(backend("fast"))], ids=str)
def test_the_default_and_backends_are_not_compared(runner: Runner) -> None:
    assert not Steps().differs(runner)


def test_a_step_that_raises_is_compared_the_next_time() -> None:
    steps = Steps()
    steps.raises = True
    with pytest.raises(KeyError):
        steps.differs(PLAN)
    steps.raises = False
    assert steps.differs(PLAN)


def test_a_plan_that_runs_while_another_is_made_is_the_same_plan() -> None:
    steps, probe = Steps(), Look(0)
    assert steps.differs(SearchStep(VARIANT, probe))
    assert not steps.differs(SearchStep(VARIANT, Meanwhile(probe)))


def test_what_is_opened_or_searched_anew_is_compared_again() -> None:
    steps, search = Steps(), SearchStep(VARIANT, Look(0))
    assert [steps.differs(PLAN), steps.differs(search)] == [True, True]
    steps.steps.forget(VARIANT, search=False)
    assert [steps.differs(PLAN), steps.differs(search)] == [True, False]
    steps.steps.forget(VARIANT, search=True)
    assert [steps.differs(PLAN), steps.differs(search)] == [False, True]


def _cumulated(x: Tensor) -> Tensor:
    return x.cumsum(0)


HIDDEN: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "a factor, by zeros": (lambda x: x.cumsum(0) * 3, torch.zeros(4)),
    "an order, by equal numbers": (lambda x: x.cumsum(0).flip(0), torch.tensor([1.0, 0.0, 0.0, 0.0])),
    "anything, by nan": (lambda x: x * 0 + x.sum(), torch.full((4,), float("nan"))),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_plan_whose_first_step_shows_nothing_is_compared_until_one_does(name: str) -> None:
    plan, x = HIDDEN[name]
    steps = FirstSteps(Shadowed(_cumulated, _cumulated, None, None, leaves))
    telling = torch.arange(4.0)
    assert [steps.run(PLAN, plan, (x,), CAPTURED)[1] for _ in range(2)] == [None, None]
    result, difference = steps.run(PLAN, plan, (telling,), CAPTURED)
    assert difference is not None
    assert torch.equal(result, telling.cumsum(0))


def test_steps_that_never_show_anything_are_compared_some_times() -> None:
    steps, ran = FirstSteps(Shadowed(_cumulated, _cumulated, None, None, leaves)), []

    def plan(x: Tensor) -> Tensor:
        ran.append(x)
        return x.cumsum(0) - 0.0

    results = [steps.run(PLAN, plan, (torch.zeros(4),), CAPTURED) for _ in range(first_steps._MOST + 3)]
    assert [difference for _, difference in results] == [None] * len(ran)
    right = FirstSteps(Shadowed(_cumulated, _cumulated, None, None, leaves))
    assert right.run(PLAN, plan, (torch.arange(4.0),), CAPTURED)[1] is None
    assert not right._is_first(PLAN)
    assert not steps._is_first(PLAN)


def test_a_plan_that_memory_is_too_small_to_compare_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "free_bytes", lambda: 10)
    steps = FirstSteps(Shadowed(_cumulated, _cumulated, None, None, leaves))

    def plan(x: Tensor) -> Tensor:
        raise AssertionError("it ran")

    result, difference = steps.run(PLAN, plan, (torch.arange(4.0),), CAPTURED)
    assert result.tolist() == [0.0, 1.0, 3.0, 6.0]
    assert difference is not None
    assert "cannot be compared" in difference
    assert "are free" in difference
