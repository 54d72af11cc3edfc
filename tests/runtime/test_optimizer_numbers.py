"""Engines and optimised steps take an optimizer's numbers as they are before each step, and never another's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

import threadcast
from tests.capture.graph.test_optimizer_settings import (
    SETTINGS,
    STEPS,
    batch,
    captured,
    moved_alike,
    train_eagerly,
    twins,
)
from threadcast.core import Machine
from threadcast.runtime.calls.short import NEW_IN_A_ROW
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.sequential import sequential

pytestmark = pytest.mark.usefixtures("one_thread")

Made = Callable[[Any], Optimizer]


def change_numbers(optimizer: Optimizer) -> None:
    """Other numbers than before; those that are 0 stay so."""
    group = optimizer.param_groups[0]
    rate = group["lr"]
    group["lr"] = rate * 0.98
    for name in ("momentum", "weight_decay", "eps"):
        if group.get(name):
            group[name] *= 0.95
    if "betas" in group:
        group["betas"] = tuple(beta * 0.99 for beta in group["betas"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["nesterov", "a tensor rate", "amsgrad", "adam with decoupled decay", "adamw"])
def test_an_engine_trains_as_eager_does_while_numbers_change(name: str, dtype: torch.dtype, machine: Machine) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(dtype, SETTINGS[name])
    start, graph = copy.deepcopy(model), captured(model, optimizer, dtype)
    engine = Engine(graph, sequential(graph.graph, machine, machine.cases()[0]), machine)
    for seed in range(STEPS):
        change_numbers(optimizer)
        change_numbers(eager_optimizer)
        x, y = batch(seed, dtype)
        engine.run(graph.bind((x,), y))
        train_eagerly(eager, eager_optimizer, x, y)
    engine.close()
    moved_alike(start, model, eager)


@pytest.mark.parametrize("name", ["nesterov", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_schedule_of_rates_and_momentum_needs_one_graph(name: str, dtype: torch.dtype) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(dtype, SETTINGS[name])
    start, steps = copy.deepcopy(model), 24
    schedules = [OneCycleLR(each, max_lr=0.2, total_steps=steps + 1) for each in (optimizer, eager_optimizer)]
    with closing(threadcast.optimize_training(model, cross_entropy, optimizer)) as step, warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(steps):
            x, y = batch(seed, dtype)
            step(x, y)
            train_eagerly(eager, eager_optimizer, x, y)
            for schedule in schedules:
                schedule.step()
        assert len(step.reports) == 1
        assert step.reports[0].reason == ""
    moved_alike(start, model, eager)


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


def test_the_update_of_dampened_sgd_is_pytorchs() -> None:
    make: Made = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5)  # noqa: E731 - as those of SETTINGS
    (model, optimizer), (eager, eager_optimizer) = twins(torch.float64, make)
    start = copy.deepcopy(model)
    x, y = batch(0, torch.float64)
    with closing(threadcast.optimize_training(model, cross_entropy, optimizer, x, y)) as step:
        for _ in range(3):
            step(x, y)
            train_eagerly(eager, eager_optimizer, x, y)
        assert "first gradient" in step.update_by
    moved_alike(start, model, eager)


class Counting(nn.Module):
    """Has an attribute that its first call sets, as a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.factor: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.factor is None:
            self.factor = torch.ones(3)
        result: Tensor = self.layer(x) * self.factor
        return result


def test_an_example_does_not_count_as_a_first_call() -> None:
    model = Counting()
    x, y = batch(0, torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with (
        closing(threadcast.optimize_training(model, cross_entropy, optimizer, x, y)) as step,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        step(x, y)
        step(x, y)
        assert [report.reason for report in step.reports] == [""]


def test_the_message_about_kinds_that_come_once_names_what_differs() -> None:
    x = torch.ones(3)
    with closing(threadcast.optimize(lambda x, factor: x * factor)) as call:
        call(x, 0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for i in range(2, NEW_IN_A_ROW + 1):
                call(x, 0.5 * i)
        with pytest.warns(UserWarning, match="that came once: they differ by shapes, types or values of the arguments"):
            call(x, -1.5)
