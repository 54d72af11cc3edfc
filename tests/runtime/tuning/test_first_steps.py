"""The first step by each plan is compared with eager PyTorch, once and for certain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from threadcast.capture.capture import capture_forward
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.contender_id import DEFAULT, backend, eager_in, plan_of
from threadcast.runtime.tuning.first_steps import FirstSteps
from threadcast.runtime.tuning.instructions import ContenderStep, Runner, SearchStep
from threadcast.runtime.tuning.plan_search import Look, Meanwhile
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
