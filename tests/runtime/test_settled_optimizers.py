"""Steps by a plan move parameters as the optimizer does, by its numbers as they are before each step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

import threadcast
from tests.capture.eager_training import train
from tests.capture.graph.test_optimizer_settings import SETTINGS, STEPS
from tests.runtime.small_training import run_until_settled
from threadcast.runtime.doors.optimize import OptimizedStep
from threadcast.runtime.tuner.standings import LOOK

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


ROUNDING = {torch.float64: 1e-9, torch.bfloat16: 0.0}
"""How far movements may differ, as a share of the largest one of a parameter."""


class Net(nn.Module):
    """Of vectors that are longer and shorter than those of a processor, and a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 17), nn.Linear(17, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.first(x).tanh() * self.scale)
        return result


def twins(dtype: torch.dtype, make: Callable[[Any], Optimizer]) -> list[tuple[Net, Optimizer]]:
    torch.manual_seed(0)
    model = Net().to(dtype)
    return [(each, make(each.parameters())) for each in (copy.deepcopy(model), copy.deepcopy(model))]


def batch(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, 6, generator=generator).to(dtype), torch.randint(0, 3, (5,), generator=generator)


def train_eagerly(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    train(model, optimizer, lambda model: cross_entropy(model(x), y))


def moved_alike(start: nn.Module, one: nn.Module, other: nn.Module) -> None:
    for before, found, wanted in zip(start.parameters(), one.parameters(), other.parameters(), strict=True):
        movement = (wanted - before).abs().max()
        assert movement > 0
        assert (found - wanted).abs().max() <= ROUNDING[before.dtype] * movement


def in_groups(kind: Callable[..., Optimizer], *settings: dict[str, Any]) -> Callable[[Iterable[Tensor]], Optimizer]:
    """An optimizer whose groups have these settings and a share of the parameters each."""

    def make(parameters: Iterable[Tensor]) -> Optimizer:
        listed = list(parameters)
        groups = [{"params": listed[n :: len(settings)], **one} for n, one in enumerate(settings)]
        return kind(groups, lr=0.01)

    return make


MORE: dict[str, Callable[[Any], Optimizer]] = {
    "dampening": lambda p: SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "adamw maximised": lambda p: AdamW(p, 0.01, eps=1e-3, maximize=True),
    "groups of sgd": in_groups(SGD, {"momentum": 0.9}, {"lr": 0.1}, {"weight_decay": 0.1, "momentum": 0.5}),
    "groups of adam": in_groups(Adam, {"amsgrad": True, "eps": 1e-3}, {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3}),
}
CASES = [
    *((name, torch.float64) for name in ("nesterov", "amsgrad", "in groups", *MORE)),
    *((name, torch.bfloat16) for name in ("nesterov", "adamw", "dampening")),
]
"""Those whose graphs differ in kind: captured graphs of all settings are run in tests of capture."""


def settled_steps(
    step: OptimizedStep, model: Net, optimizer: Optimizer, eager: Net, eager_optimizer: Optimizer,
    dtype: torch.dtype, after_each: Callable[[Optimizer], None] = lambda _: None,
) -> None:  # fmt: skip
    """Settle, give eager the same state, take twelve steps by the plan and by eager, and compare the movements."""
    run_until_settled(step, lambda seed: step(*batch(seed, dtype)))
    assert STEPS < LOOK, "it is not measured again meanwhile"
    start = copy.deepcopy(model)
    eager.load_state_dict(model.state_dict())
    eager_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(STEPS):
        x, y = batch(1_000 + seed, dtype)
        step(x, y)
        assert [report.runs for report in step.reports] == ["plan"]
        train_eagerly(eager, eager_optimizer, x, y)
        for each in (optimizer, eager_optimizer):
            after_each(each)
    moved_alike(start, model, eager)


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda value: str(value))
def test_twelve_steps_by_a_plan_train_as_eager_does(name: str, dtype: torch.dtype) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(dtype, {**SETTINGS, **MORE}[name])
    with closing(threadcast.optimize_training(model, cross_entropy, optimizer)) as step:
        settled_steps(step, model, optimizer, eager, eager_optimizer, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["nesterov", "adamw"])
def test_a_schedule_of_rates_and_momentum_stays_on_the_plan(name: str, dtype: torch.dtype) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(dtype, SETTINGS[name])
    schedules = {id(each): OneCycleLR(each, max_lr=0.2, total_steps=STEPS + 1) for each in (optimizer, eager_optimizer)}

    def next_numbers(each: Optimizer) -> None:
        schedules[id(each)].step()

    with closing(threadcast.optimize_training(model, cross_entropy, optimizer)) as step:
        settled_steps(step, model, optimizer, eager, eager_optimizer, dtype, next_numbers)


def test_numbers_that_become_0_or_cease_to_be_it_are_honoured() -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(torch.float64, SETTINGS["sgd"])
    start = copy.deepcopy(model)
    changes: list[dict[str, Any]] = [
        {}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.0}, {"momentum": 0.5, "dampening": 0.3},
        {"maximize": True}, {"lr": torch.tensor(0.1)}, {"nesterov": True, "dampening": 0.0},
    ]  # fmt: skip
    with closing(threadcast.optimize_training(model, cross_entropy, optimizer)) as step:
        for seed, change in enumerate(changes):
            for each in (optimizer, eager_optimizer):
                each.param_groups[0].update(change)
            for again in range(2):
                x, y = batch(2 * seed + again, torch.float64)
                step(x, y)
                train_eagerly(eager, eager_optimizer, x, y)
            moved_alike(start, model, eager)
