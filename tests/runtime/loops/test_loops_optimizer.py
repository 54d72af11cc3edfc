"""Optimizers, schedules, clipping, accumulation and scaled losses in loops: each as in eager PyTorch, by a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer, lr_scheduler

import threadcast
from tests.runtime.loops.reference import STEPS, Make, Net, batch, sgd, trains_as_eager

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


class SignDescent(Optimizer):
    """A user's own optimizer, which gives its parameters other data in every step where `exchanges` is set."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, *, exchanges: bool = False) -> None:
        super().__init__(parameters, {"lr": lr, "exchanges": exchanges})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 0.1)
                if group["exchanges"]:
                    parameter.data = parameter - group["lr"] * mean.sign()
                else:
                    parameter.sub_(mean.sign(), alpha=group["lr"])


class Counted(Optimizer):
    """A user's own optimizer whose state is not of parameters alone."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, *, at_once: bool) -> None:
        super().__init__(parameters, {"lr": lr})
        if at_once:
            self.state["steps"] = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.state["steps"] = (self.state["steps"] or 0) + 1
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = parameter.grad / self.state["steps"]
            parameter.sub_(self.state[parameter], alpha=self.param_groups[0]["lr"])


class SharpnessAware(Optimizer):
    """A user's own optimizer that computes gradients twice for each update."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        parameters = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in parameters]
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.add_(move)
        with torch.enable_grad():
            closure()
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.sub_(move).sub_(parameter.grad, alpha=self.param_groups[0]["lr"])
        return loss


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "Adadelta": lambda m: optim.Adadelta(m.parameters(), lr=0.5),
    "Adafactor": lambda m: optim.Adafactor(m.parameters(), lr=0.01),
    "Adagrad": lambda m: optim.Adagrad(m.parameters(), lr=0.05),
    "Adam": lambda m: optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "AdamW": lambda m: optim.AdamW(m.parameters(), lr=0.01),
    "Adamax": lambda m: optim.Adamax(m.parameters(), lr=0.01),
    "ASGD": lambda m: optim.ASGD(m.parameters(), lr=0.05, t0=3),
    "NAdam": lambda m: optim.NAdam(m.parameters(), lr=0.01),
    "RAdam": lambda m: optim.RAdam(m.parameters(), lr=0.01),
    "RMSprop": lambda m: optim.RMSprop(m.parameters(), lr=0.01, momentum=0.9, centered=True),
    "Rprop": lambda m: optim.Rprop(m.parameters(), lr=0.01),
    "SGD with dampening": lambda m: optim.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.5),
    "Muon": lambda m: optim.Muon([p for p in m.parameters() if p.dim() == 2], lr=0.01),
    "a user's own": lambda m: SignDescent(m.parameters(), lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name: str) -> None:
    def loop(make: Make) -> Any:
        model = Net()
        optimizer = OPTIMIZERS[name](model)
        step = make(model, cross_entropy, optimizer)
        return [step(*batch(seed)) for seed in range(2 * STEPS)], model, optimizer

    # Muon computes in bfloat16, where the last bit of a gradient may become one of bfloat16's
    trains_as_eager(loop, within=1e-2 if name == "Muon" else 1e-8)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_optimizer_of_the_user_whose_state_is_not_of_parameters_alone(at_once: bool) -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, Counted(model.parameters(), 0.05, at_once=at_once))
        return [step(*batch(seed)) for seed in range(2 * STEPS)], model

    trains_as_eager(loop)


def test_sparse_gradients_are_refused_aloud() -> None:
    def loop(make: Make) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Flatten(), nn.Linear(18, 3)).double()
        both = optim.SparseAdam(model[0].parameters(), lr=0.01)
        step = make(model, cross_entropy, both)
        drawn = torch.Generator().manual_seed(0)
        for _ in range(STEPS):
            step(torch.randint(20, (4, 3), generator=drawn), torch.randint(3, (4,), generator=drawn))
        return model

    trains_as_eager(loop, refused="as PyTorch does")


@pytest.mark.parametrize("settings", [{}, {"line_search_fn": "strong_wolfe"}], ids=str)
def test_lbfgs_computes_gradients_several_times_by_a_plan(settings: dict[str, Any]) -> None:
    """Its reference is a closure, as PyTorch's documentation has it."""

    def loop(make: Make) -> Any:
        model = Net().eval()
        optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, **settings)
        return _by_closure(make, model, optimizer), model

    trains_as_eager(loop)


def test_an_optimizer_of_the_user_that_computes_gradients_twice() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        return _by_closure(make, model, SharpnessAware(model.parameters(), lr=0.05)), model

    trains_as_eager(loop)


def _by_closure(make: Make, model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    step, losses = make(model, cross_entropy, optimizer), []
    for seed in range(STEPS):
        x, y = batch(seed)
        if hasattr(step, "planned"):
            losses.append(step(x, y))
            continue

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            torch.autograd.backward(loss)
            return loss

        losses.append(torch.as_tensor(optimizer.step(closure)))  # type: ignore[arg-type]
    return losses


def test_an_optimizer_that_exchanges_data_in_every_step_is_refused_aloud() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, SignDescent(model.parameters(), 0.01, exchanges=True))
        return [step(*batch(seed)) for seed in range(4 * STEPS)], model

    trains_as_eager(loop, refused="changes from call to call")


def test_a_schedule_that_is_made_after_steps_by_a_plan() -> None:
    """No step calls the optimizer's own `step` any more, of which PyTorch's schedules warn."""

    def loop(make: Make) -> Any:
        model = Net()
        optimizer = sgd(model)
        step = make(model, cross_entropy, optimizer)
        for seed in range(2 * STEPS):
            step(*batch(seed))
        schedule = lr_scheduler.StepLR(optimizer, 3)
        for seed in range(STEPS):
            step(*batch(seed))
            schedule.step()
        return model, optimizer.param_groups[0]["lr"]

    trains_as_eager(loop)


@pytest.mark.parametrize(("kind", "whole"), [(optim.SGD, True), (optim.AdamW, True), (optim.NAdam, False)])
def test_clipping_is_part_of_a_planned_step(kind: Callable[..., Optimizer], whole: bool) -> None:
    model = Net()
    with closing(
        threadcast.optimize_training(model, cross_entropy, kind(model.parameters(), lr=0.05), clip_grad_norm=0.1)
    ) as step:
        step(*batch(0))
        assert step.update_by.startswith("the plan" if whole else "PyTorch")


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_fused_updates_of_convolutions(kind: Callable[..., Optimizer], accumulate: int) -> None:
    """They take numbers in the order of memory, in whatever format the gradients were made."""

    def loop(make: Make) -> Any:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()
        settings = {"momentum": 0.9} if kind is optim.SGD else {}
        optimizer = kind(model.parameters(), lr=0.01, fused=True, **settings)
        step = make(model, cross_entropy, optimizer, accumulate=accumulate, clip_grad_norm=1.0, keep_grads=True)
        for _ in range(3 * STEPS):
            step(torch.randn(5, 3, 4, 4, dtype=torch.float64), torch.randint(3, (5,)))
        return model, optimizer

    trains_as_eager(loop)


def test_fused_updates_of_convolutions_from_a_loaded_state_on() -> None:
    """The groups of a state that is loaded say `fused=True`, after the step was made for an optimizer without it."""

    def loop(make: Make) -> Any:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()
        saved = optim.AdamW(model.parameters(), lr=0.01, fused=True).state_dict()
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        step = make(model, cross_entropy, optimizer, clip_grad_norm=1.0, keep_grads=True)
        optimizer.load_state_dict(saved)
        for _ in range(3 * STEPS):
            step(torch.randn(5, 3, 4, 4, dtype=torch.float64), torch.randint(3, (5,)))
        return model, optimizer

    trains_as_eager(loop)


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}], ids=str)
def test_fused_updates_of_convolutions_by_a_second_optimizer(options: dict[str, Any]) -> None:
    """Its state does not follow the memory format in which the step runs, so its weights must not either."""

    def loop(make: Make) -> Any:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(4, 3)).double()
        second = optim.AdamW(model[0].parameters(), lr=0.01, fused=True)
        step = make(model, cross_entropy, sgd(model[2:]), **options)
        for _ in range(3 * STEPS):
            step(torch.randn(5, 3, 4, 4, dtype=torch.float64), torch.randint(3, (5,)))
            second.step()
            second.zero_grad()
        return model, second

    trains_as_eager(loop)


def test_a_hook_of_an_optimizer() -> None:
    def loop(make: Make) -> Any:
        model, steps = Net(), []
        optimizer = sgd(model)
        optimizer.register_step_post_hook(lambda *_: steps.append(1.0))
        step = make(model, cross_entropy, optimizer)
        return [step(*batch(seed)) for seed in range(STEPS)], model, steps

    trains_as_eager(loop)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_a_parameter_that_a_group_has_twice_is_updated_twice(kind: Callable[..., Optimizer]) -> None:
    """As PyTorch does, which only warns of it where the optimizer is made."""

    def loop(make: Make) -> Any:
        model = Net()
        optimizer = kind(model.parameters(), lr=0.01)
        optimizer.param_groups[0]["params"].append(model.last.weight)
        step = make(model, cross_entropy, optimizer)
        return [step(*batch(seed)) for seed in range(2 * STEPS)], model

    trains_as_eager(loop)


@pytest.mark.parametrize("kind", [optim.AdamW, optim.RMSprop])
def test_loading_an_optimizers_state(kind: Callable[..., Optimizer]) -> None:
    def loop(make: Make) -> Any:
        model = Net()
        optimizer = kind(model.parameters(), lr=0.01)
        step = make(model, cross_entropy, optimizer)
        for seed in range(STEPS):
            step(*batch(seed))
        saved = copy.deepcopy(optimizer.state_dict())
        for seed in range(STEPS):
            step(*batch(seed))
        optimizer.load_state_dict(saved)
        for seed in range(STEPS):
            step(*batch(seed))
        return model, optimizer

    trains_as_eager(loop)
