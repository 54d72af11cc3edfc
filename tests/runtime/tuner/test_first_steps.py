"""The first step by each plan that can show something is compared with eager PyTorch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Case
from threadcast.runtime.check import shadow
from threadcast.runtime.check.shadow import Shadowed, leaves
from threadcast.runtime.plans.curves_in_step import ENOUGH_S, LEAST_STEPS, WARM_UP, LookSchedule
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner import first_steps
from threadcast.runtime.tuner.candidate import DEFAULT, backend, eager_in, plan_of
from threadcast.runtime.tuner.first_steps import FirstSteps, Runner, TimedRun
from threadcast.runtime.tuner.looks import Look

VARIANT = Variant(MemoryFormat.AS_GIVEN)
PLAN = plan_of(VARIANT)
LOOKS = LookSchedule((Case(2), Case(1)), 2, 5)
CAPTURED = capture_forward(lambda x: x + 1, torch.ones(2))


class Steps:
    """First steps of a call that adds 1; each run is by a step that adds 2."""

    def __init__(self) -> None:
        self.raises = False
        self.steps = FirstSteps(Shadowed(self._eager, self._eager, None, None, leaves), LOOKS)

    def _eager(self, x: Tensor) -> Tensor:
        if self.raises:
            raise KeyError("the caller's own")
        return x + 1

    def differs(self, runner: Runner) -> bool:
        result, difference = self.steps.run(runner, lambda x: x + 2, (torch.ones(2),), CAPTURED)
        assert result.tolist() == ([3.0, 3.0] if difference is None else [2.0, 2.0]), "eager's, where they differ"
        return difference is not None


@pytest.mark.parametrize("runner", [PLAN, eager_in(MemoryFormat.CHANNELS_LAST), DEFAULT, backend("fast")], ids=str)
def test_a_plan_and_another_format_are_compared_once_and_nothing_else(runner: Runner) -> None:
    steps, differs = Steps(), runner.variant is not None or runner.memory_format is not None
    assert [steps.differs(runner) for _ in range(3)] == [differs, False, False]


def test_a_step_that_raises_is_compared_the_next_time() -> None:
    steps = Steps()
    steps.raises = True
    with pytest.raises(KeyError):
        steps.differs(PLAN)
    steps.raises = False
    assert steps.differs(PLAN)


def test_what_is_opened_or_searched_anew_is_compared_again() -> None:
    steps, look = Steps(), Look(VARIANT, 0)
    assert [steps.differs(PLAN), steps.differs(look)] == [True, True]
    steps.steps.forget(PLAN)
    assert [steps.differs(PLAN), steps.differs(look)] == [True, False]
    steps.steps.forget(look)
    assert [steps.differs(PLAN), steps.differs(look)] == [False, True]


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
    steps = FirstSteps(Shadowed(_cumulated, _cumulated, None, None, leaves), LOOKS)
    telling = torch.arange(4.0)
    assert [steps.run(PLAN, plan, (x,), CAPTURED)[1] for _ in range(2)] == [None, None]
    result, difference = steps.run(PLAN, plan, (telling,), CAPTURED)
    assert difference is not None
    assert torch.equal(result, telling.cumsum(0))


def test_once_steps_have_shown_nothing_one_step_by_each_further_plan_is_compared() -> None:
    steps = FirstSteps(Shadowed(_cumulated, _cumulated, None, None, leaves), LOOKS)
    silent, telling = (torch.zeros(4),), (torch.arange(4.0),)

    def compared(number: int, *arguments: tuple[Tensor]) -> int:
        """How many of the first steps of another plan are compared, on these arguments and then on zeros."""
        plan, count = Look(VARIANT, number), 0
        while steps._is_first(plan):
            assert steps.run(plan, _cumulated, [*arguments, *[silent] * 10][count], CAPTURED)[1] is None
            count += 1
        return count

    assert [compared(0), compared(1), compared(2)] == [first_steps._MOST, 1, 1]
    assert [compared(3, telling), compared(4)] == [1, first_steps._MOST]


def test_looks_at_a_training_step_leave_nothing_behind() -> None:
    torch.manual_seed(0)
    mine, looks, state = nn.Linear(2, 3), [], torch.get_rng_state()
    eager, x = copy.deepcopy(mine), torch.randn(4, 2)

    def step_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
        optimizer = optimizers[model] = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            loss = nn.functional.dropout(model(x)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    def look(x: Tensor) -> Tensor:
        looks.append(torch.rand(5))
        with torch.no_grad():
            for parameter in mine.parameters():
                parameter.fill_(7.0)
                parameter.grad = torch.ones_like(parameter)
        optimizers[mine].step()
        return x.sum()

    optimizers: dict[nn.Module, torch.optim.SGD] = {}
    drawing = capture_forward(nn.functional.dropout, torch.ones(2))
    step, wanted = step_of(mine), step_of(eager)
    steps = FirstSteps(Shadowed(step, step, mine, optimizers[mine], leaves), LOOKS)
    for number, (look_s, runs) in enumerate([(1e-3, LOOKS.steps), (ENOUGH_S, LEAST_STEPS), (ENOUGH_S / 4, 4)]):
        looks.clear()
        torch.set_rng_state(state)
        timed = TimedRun(lambda x, s=look_s: (look(x), s if looks[1:] else 9.0), time.perf_counter)
        result, difference = steps.run(Look(VARIANT, number), timed, (x,), drawing)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert torch.equal(result, wanted(x))
        assert torch.equal(after, torch.get_rng_state())
        assert (difference, len(looks), timed.seconds) == (None, WARM_UP + runs, look_s)
        assert all(torch.equal(one, looks[0]) for one in looks), "each from the same state"
        for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
            assert torch.equal(one, other)
            assert one.grad is None
            momentum = (optimizers[model].state[p]["momentum_buffer"] for model, p in ((mine, one), (eager, other)))
            assert torch.equal(*momentum)


def test_a_look_at_a_training_step_that_raises_is_told_and_the_step_runs() -> None:
    model = nn.Linear(2, 1)

    def fails(x: Tensor) -> Tensor:
        with torch.no_grad():
            model.weight.zero_()
        raise ValueError("no such kernel")

    before = model.weight.detach().clone()
    steps = FirstSteps(Shadowed(model, model, model, torch.optim.SGD(model.parameters()), leaves), LOOKS)
    timed = TimedRun(lambda x: (fails(x), None), time.perf_counter)
    result, difference = steps.run(Look(VARIANT, 0), timed, (torch.ones(1, 2),), CAPTURED)
    assert (torch.equal(result, model(torch.ones(1, 2))), torch.equal(model.weight, before)) == (True, True)
    assert difference == "the step: ValueError: no such kernel"


@pytest.mark.parametrize("runner", [PLAN, Look(VARIANT, 0)], ids=str)
def test_a_plan_that_memory_is_too_small_to_compare_does_not_run(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "free_bytes", lambda: 10)
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters())
    steps = FirstSteps(Shadowed(_cumulated, _cumulated, None, optimizer, leaves), LOOKS)

    def plan(x: Tensor) -> Tensor:
        raise AssertionError("it ran")

    result, difference = steps.run(runner, plan, (torch.arange(4.0),), CAPTURED)
    assert result.tolist() == [0.0, 1.0, 3.0, 6.0]
    assert difference is not None
    assert "cannot be compared" in difference
    assert "are free" in difference
    assert not steps.comparable
