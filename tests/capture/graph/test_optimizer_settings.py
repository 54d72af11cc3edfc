"""A captured step moves parameters as the optimizer does, whatever its settings, types and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from tests.capture.eager_training import train
from threadcast.capture.graph.capture import capture_step, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.optimizers import OptimizerRefused

STEPS = 6
Made = Callable[[Any], Optimizer]


def in_groups(parameters: Any) -> Optimizer:
    first, second, *rest = parameters
    groups = [
        {"params": [first, second], "momentum": 0.0, "weight_decay": 0.3},
        {"params": rest[:2], "lr": torch.tensor(0.3, dtype=torch.float64), "nesterov": True},
        {"params": rest[2:], "maximize": True, "lr": 1e-3, "label": object()},
    ]
    return SGD(groups, lr=0.05, momentum=0.9)


SETTINGS: dict[str, Made] = {
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
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-9}
"""How far movements may differ, as a share of the largest one of a parameter."""
SHAPES = [(3,), (), (5, 13), (1,), (15,), (16,), (17,), (64,), (65,), (3, 0, 2), (70_001,), (2, 3, 4, 5)]
"""Below, at and above the width of vectors, odd and empty ones, and one that several threads share."""


class Net(nn.Module):
    """Has parameters of all sizes, types and layouts, with gradients that lie otherwise, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        made = [torch.linspace(0.5, 2, torch.Size(s).numel(), dtype=d).reshape(s) for s in SHAPES for d in ROUNDING]
        made += [made[-1].clone(memory_format=torch.channels_last), made[4].t().clone().t()]
        self.all = nn.ParameterList(map(nn.Parameter, made))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        turned = (one.permute([*reversed(range(one.dim()))]) for one in self.all)
        return torch.stack([(one.clone(memory_format=torch.contiguous_format) ** 2 * x).sum() for one in turned]).sum()


def twins(make: Made, *, before: int = 0) -> list[tuple[Net, Optimizer]]:
    """A model with its optimizer, and the same once more, both after some eager steps."""
    pairs = [(net, make(net.parameters())) for net in (Net(), Net())]
    for net, optimizer in pairs:
        for _ in range(before):
            train(net, optimizer, lambda model: model(X))
    return pairs


X = torch.tensor(0.5, dtype=torch.float64)


def captured(model: nn.Module, optimizer: Optimizer, most_norm: float | None = None) -> Captured:
    def objective(model: nn.Module, x: Tensor) -> tuple[dict[str, Any], Tensor]:
        loss = model(x)
        return {"loss": loss}, loss

    return capture_step(model, objective, optimizer, (X,), most_norm=most_norm)


def moved_alike(start: nn.Module, one: nn.Module, other: nn.Module) -> None:
    for before, found, wanted in zip(start.parameters(), one.parameters(), other.parameters(), strict=True):
        movement = (wanted - before).detach().abs().max() if before.numel() else 0.0
        assert (movement > 0) == (before.numel() > 0 and before is not start.unused)
        torch.testing.assert_close(found, wanted, rtol=0, atol=ROUNDING[before.dtype] * float(movement))


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("make", SETTINGS.values(), ids=list(SETTINGS))
def test_every_setting_trains_as_eager_does(make: Made, before: int) -> None:
    start = Net()
    (model, optimizer), (eager, eager_optimizer) = twins(make, before=before)
    if before:  # the state is of another layout then
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = captured(model, optimizer)
    assert sum("_fused_" in str(node.target) for node in step.program.nodes) == len(model.all)
    for number in range(STEPS):
        step.run(X * (number + 1))
        train(eager, eager_optimizer, lambda model, x=X * (number + 1): model(x))
    moved_alike(start, model, eager)
    kept, wanted = (each.state_dict()["state"] for each in (optimizer, eager_optimizer))
    assert {key: [*state] for key, state in kept.items()} == {key: [*state] for key, state in wanted.items()}


@pytest.mark.parametrize("name", ["nesterov", "adam with decay"])
def test_one_graph_takes_rates_and_momentum_of_a_schedule(name: str) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(SETTINGS[name])
    step = captured(model, optimizer)
    schedules = [OneCycleLR(each, max_lr=0.2, total_steps=STEPS + 1) for each in (optimizer, eager_optimizer)]
    for number in range(STEPS):
        for each in (optimizer, eager_optimizer):
            each.param_groups[0]["weight_decay"] = 0.01 * (number + 1)
            if "eps" in each.param_groups[0]:
                each.param_groups[0]["eps"] = 1e-3 * (number + 1)
        step.run(X)
        train(eager, eager_optimizer, lambda model: model(X))
        for schedule in schedules:
            schedule.step()
    moved_alike(Net(), model, eager)


@pytest.mark.parametrize("factor", [1.0, float("inf")], ids=["finite", "not finite"])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_gradients_are_clipped_as_pytorch_clips_them(name: str, factor: float) -> None:
    (model, optimizer), (eager, eager_optimizer) = twins(SETTINGS[name])
    for each in (model, eager):
        each.unused.requires_grad_(False).grad = torch.ones(3)  # does not count
    _, probe = twins(SETTINGS[name])
    most, norms = train(*probe, lambda model: model(X), most_norm=float("inf"))[1] * 0.9, []
    step = captured(model, optimizer, most)
    for _ in range(STEPS):
        step.run(X * factor)
        norms.append(train(eager, eager_optimizer, lambda model: model(X * factor), most_norm=most)[1])
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), equal_nan=True)
    assert factor != 1.0 or norms[0] > most
    trained = SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    captured(model, trained)
    with pytest.raises(OptimizerRefused, match="which the norm counts"):  # another optimizer may have trained others
        captured(model, trained, 1.0)


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


def test_unknown_optimizers_and_settings_are_named() -> None:
    model = nn.Linear(2, 2)
    future, rate = SGD(model.parameters(), lr=0.1), torch.tensor(0.1, requires_grad=True)
    future.defaults["lookahead"] = True
    for optimizer, message in [
        (torch.optim.RMSprop(model.parameters()), "RMSprop.*SGD, Adam, AdamW"),
        (Adam(model.parameters(), differentiable=True), "differentiable"),
        (Adam(model.parameters(), capturable=True), "capturable"),
        (SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5), "does not dampen"),
        (SGD(model.parameters(), lr=rate), "lr=.* is a tensor"),
        (SGD(model.parameters(), lr=0.1, weight_decay=torch.tensor(0.1)), "weight_decay=.* is a tensor"),
        (future, "not known: lookahead"),
    ]:
        with pytest.raises(OptimizerRefused, match=message):
            capture_training(model, nn.functional.mse_loss, optimizer, (torch.ones(1, 2),), torch.ones(1, 2))


def test_gradients_that_are_zeros_without_memory_are_left_to_pytorch() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(OptimizerRefused, match="the gradient of weight is zeros without memory"):
        capture_training(model, lambda *_: model.weight.sgn().sum(), SGD(model.parameters()), (torch.ones(3),), None)
