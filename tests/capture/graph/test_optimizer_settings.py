"""A captured step moves parameters as the optimizer does, whatever its settings and types, and as they change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from tests.capture.eager_training import train
from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.optimizers import OptimizerRefused

STEPS = 6


def in_groups(parameters: Any) -> Optimizer:
    first, *rest = parameters
    groups = [
        {"params": [first], "momentum": 0.0, "weight_decay": 0.3},
        {"params": rest[:2], "lr": torch.tensor(0.3, dtype=torch.float64), "nesterov": True},
        {"params": rest[2:], "maximize": True, "lr": 1e-3, "label": object()},
    ]
    return SGD(groups, lr=0.05, momentum=0.9)


SETTINGS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9),
    "nesterov": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "maximised": lambda p: SGD(p, 0.02, momentum=0.9, maximize=True, weight_decay=0.1),
    "foreach": lambda p: SGD(p, 0.1, momentum=0.9, foreach=True),
    "a tensor rate": lambda p: SGD(p, torch.tensor(0.1, dtype=torch.float64), momentum=0.9),
    "adam": lambda p: Adam(p, 0.01, eps=1e-3),
    "adam with decay": lambda p: Adam(p, 0.01, eps=1e-3, weight_decay=0.1),
    "adam with decoupled decay": lambda p: Adam(p, 0.01, eps=1e-3, weight_decay=0.5, decoupled_weight_decay=True),
    "amsgrad": lambda p: Adam(p, 0.01, eps=1e-3, amsgrad=True, maximize=True),
    "adam with a tensor rate": lambda p: Adam(p, torch.tensor(0.01, dtype=torch.float64), eps=1e-3, weight_decay=0.1),
    "adamw": lambda p: AdamW(p, 0.01, eps=1e-3, weight_decay=0.5),
    "in groups": in_groups,
    "adamw with amsgrad": lambda p: AdamW(p, 0.01, eps=1e-3, amsgrad=True, betas=(0.8, 0.9)),
}
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-9, torch.bfloat16: 0.0}
"""How far movements may differ, as a share of the largest one of a parameter."""
BY_KERNELS = [torch.float32, torch.float64]
"""Types of which PyTorch's fused kernels are right; others' updates are PyTorch's."""


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


def captured(model: nn.Module, optimizer: Optimizer, dtype: torch.dtype) -> Captured:
    x, y = batch(0, dtype)
    return capture_training(model, cross_entropy, optimizer, (x,), y)


def train_eagerly(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    train(model, optimizer, lambda model: cross_entropy(model(x), y))


def moved_alike(start: nn.Module, one: nn.Module, other: nn.Module) -> None:
    for before, found, wanted in zip(start.parameters(), one.parameters(), other.parameters(), strict=True):
        movement = (wanted - before).abs().max()
        assert movement > 0
        assert (found - wanted).abs().max() <= ROUNDING[before.dtype] * movement


@pytest.mark.parametrize("dtype", BY_KERNELS, ids=str)
@pytest.mark.parametrize("make", SETTINGS.values(), ids=list(SETTINGS))
def test_every_setting_trains_as_eager_does(make: Callable[[Any], Optimizer], dtype: torch.dtype) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(dtype, make)
    start, step = copy.deepcopy(model), captured(model, optimizer, dtype)
    for seed in range(STEPS):
        x, y = batch(seed, dtype)
        step.run((x,), y)
        train_eagerly(eager, eager_optimizer, x, y)
    moved_alike(start, model, eager)
    kept, wanted = (each.state_dict()["state"] for each in (optimizer, eager_optimizer))
    assert {key: [*state] for key, state in kept.items()} == {key: [*state] for key, state in wanted.items()}


@pytest.mark.parametrize("dtype", BY_KERNELS, ids=str)
@pytest.mark.parametrize("make", [SETTINGS["nesterov"], SETTINGS["adam with decay"]], ids=["sgd", "adam"])
def test_one_graph_takes_rates_and_momentum_of_a_schedule(make: Callable[[Any], Optimizer], dtype: torch.dtype) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(dtype, make)
    start, step = copy.deepcopy(model), captured(model, optimizer, dtype)
    schedules = [OneCycleLR(each, max_lr=0.2, total_steps=STEPS + 1) for each in (optimizer, eager_optimizer)]
    for seed in range(STEPS):
        for each in (optimizer, eager_optimizer):
            each.param_groups[0]["weight_decay"] = 0.01 * (seed + 1)
            if "eps" in each.param_groups[0]:
                each.param_groups[0]["eps"] = 1e-3 * (seed + 1)
        x, y = batch(seed, dtype)
        step.run((x,), y)
        train_eagerly(eager, eager_optimizer, x, y)
        for schedule in schedules:
            schedule.step()
    moved_alike(start, model, eager)


SHAPES = [(3,), (), (5, 13), (1,), (15,), (16,), (17,), (64,), (65,), (3, 0, 2), (70_001,), (2, 3, 4, 5)]
"""Below, at and above the width of vectors, odd and empty ones, and one that several threads share."""


@pytest.mark.parametrize("dtype", BY_KERNELS, ids=str)
@pytest.mark.parametrize("make", [SETTINGS[name] for name in ("nesterov", "amsgrad", "adamw")])
def test_kernels_are_right_for_every_size(make: Callable[[Any], Optimizer], dtype: torch.dtype) -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = [nn.Parameter(torch.linspace(0.5, 2, torch.Size(s).numel(), dtype=dtype).reshape(s)) for s in SHAPES]
            made.append(nn.Parameter(made[-1].detach().clone(memory_format=torch.channels_last)))
            self.all = nn.ParameterList(made)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([(one * one * x).sum() for one in self.all]).sum()

    start = Sizes()
    (model, eager), x = (copy.deepcopy(start) for _ in range(2)), torch.tensor(0.5, dtype=dtype)
    optimizer, eager_optimizer = make(model.parameters()), make(eager.parameters())
    step = capture_training(model, lambda out, _: out, optimizer, (x,), None)
    assert sum("_fused_" in str(node.target) for node in step.program.nodes) == len(SHAPES) + 1
    for _ in range(3):
        step.run()
        train(eager, eager_optimizer, lambda model: model(x))
    for found, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5 if dtype is torch.float32 else 1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.float32], ids=str)
@pytest.mark.parametrize("make", [SGD, Adam, AdamW])
def test_pytorch_updates_what_rounds_coarsely_or_has_gaps(make: Callable[..., Optimizer], dtype: torch.dtype) -> None:
    model, x = nn.Linear(5, 5, dtype=dtype), torch.ones(2, 5, dtype=dtype)
    if dtype is torch.float32:
        model.weight = nn.Parameter(torch.randn(5, 10)[:, ::2])  # has gaps in memory
    optimizer = make(model.parameters(), lr=0.1)
    with pytest.raises(OptimizerRefused, match=f"kernel of {make.__name__} is not right for weight, {dtype}"):
        capture_training(model, lambda out, _: out.abs().sum(), optimizer, (x,), None)
    assert not optimizer.state


class Mixed(nn.Module):
    """Parameters of several types, empty ones, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.linspace(-1, 1, 48).reshape(6, 8)
        self.left, self.right = nn.Parameter(whole[:, ::2].clone()), nn.Parameter(whole[:, 1::2].t().clone().t())
        self.wide = nn.Parameter(torch.ones(20, dtype=torch.float64))
        self.precise = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.empty = nn.Parameter(torch.ones(0))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        products = x @ self.left * self.precise + x @ self.right
        return products * self.wide.mean() + self.empty.sum()


@pytest.mark.parametrize("make", [SETTINGS["nesterov"], SETTINGS["adam with decay"]], ids=["sgd", "adam"])
def test_parameters_of_several_kinds_are_trained_as_eager_does(make: Callable[[Any], Optimizer]) -> None:
    model, eager = Mixed(), Mixed()
    optimizer, eager_optimizer = make(model.parameters()), make(eager.parameters())
    x, y = torch.linspace(0, 1, 12).reshape(2, 6), torch.tensor([0, 3])
    step = capture_training(model, cross_entropy, optimizer, (x,), y)
    for _ in range(STEPS):
        step.run()
        train_eagerly(eager, eager_optimizer, x, y)
    for (name, found), wanted in zip(model.named_parameters(), eager.parameters(), strict=True):
        precise = 1e-4 if found.dtype is torch.float32 else 1e-5
        torch.testing.assert_close(found, wanted, rtol=precise, atol=precise, msg=lambda m, name=name: f"{name}: {m}")
    assert set(optimizer.state) == {p for name, p in model.named_parameters() if name != "unused"}


class Sign(nn.Module):
    """Its gradient is zeros without memory, to which nothing can be written."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.of.sgn() * x


def test_gradients_that_are_zeros_without_memory_are_left_to_pytorch() -> None:
    model = Sign()
    with pytest.raises(OptimizerRefused, match="the gradient of of is zeros without memory"):
        capture_training(model, lambda out, _: out.sum(), SGD(model.parameters()), (torch.ones(3),), None)
