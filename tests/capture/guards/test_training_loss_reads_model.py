"""A loss that reads the model's parameters trains by that gradient too; other tensors that require one are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from tests.capture.eager_training import train
from threadcast.capture.graph.capture import capture_training
from threadcast.core.errors import CaptureError

Loss = Callable[[Any, Any], Tensor]


def slope(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
    return found.pow(2).sum()


def taught(found: Tensor, model: nn.Sequential) -> Tensor:
    with torch.no_grad():
        target = TEACHER(OTHER)
    return (found - target).pow(2).sum() + model[0].weight.pow(2).sum()


TERMS: dict[str, Callable[[nn.Sequential, Tensor, Tensor], Any]] = {
    "decay": lambda model, found, wanted: 0.1 * sum((p**2).sum() for p in model.parameters()),
    "another call": lambda model, found, wanted: cross_entropy(model(OTHER), wanted),
    "a penalised gradient": lambda model, found, wanted: slope(model, OTHER),
    "a teacher": lambda model, found, wanted: taught(found, model),
}


def with_term(name: str, model: nn.Sequential) -> Loss:
    return lambda found, wanted: cross_entropy(found, wanted) + TERMS[name](model, found, wanted)


BATCH = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).double(), torch.arange(5) % 3
OTHER = torch.randn(5, 6, generator=torch.Generator().manual_seed(2)).double()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9, bias=False), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 3)).double()


TEACHER = small()


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), 0.05, momentum=0.9)


@pytest.mark.parametrize("term", TERMS)
def test_parameters_move_by_the_whole_loss(term: str) -> None:
    start = small()
    x, y = BATCH[0].clone(), BATCH[1]
    x[:, 0] = 0  # so that only the part of the loss that reads the model moves the first feature's weights
    one, other = copy.deepcopy(start), copy.deepcopy(start)
    loss, optimizer = with_term(term, other), sgd(other)
    step = capture_training(one, with_term(term, one), sgd(one), (x,), y)
    for _ in range(6):
        value = step.run((x,), y)["loss"]
        wanted, _ = train(other, optimizer, lambda model: loss(model(x), y))
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=0)
    for (name, before), found in zip(start.state_dict().items(), one.state_dict().values(), strict=True):
        reference = other.state_dict()[name]
        movement = (reference - before).abs().max()
        assert (found - reference).abs().max() <= 1e-9 * movement, name
    assert (other[0].weight - start[0].weight)[:, 0].abs().max() > 0


def test_parameters_and_their_memory_that_the_loss_holds_itself_are_refused() -> None:
    model = small()
    parameters, weight = list(model.parameters()), model[0].weight.detach()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    refused: list[tuple[Loss, str]] = [
        (lambda found, wanted: found.sum() + sum(p.pow(2).sum() for p in parameters), "is not read from the model"),
        (lambda found, wanted: cross_entropy(found * scale, wanted), "is not read from the model"),
        (lambda found, wanted: cross_entropy(found, wanted) * weight.sum(), "shares memory with a parameter"),
    ]
    for loss, reason in refused:
        with pytest.raises(CaptureError, match=reason):
            capture_training(model, loss, sgd(model), BATCH[:1], BATCH[1])


def test_a_step_adds_to_the_gradients_of_parameters_that_are_not_the_optimizers() -> None:
    one, other = small(), small()
    x, y = BATCH
    optimizers = [SGD(model[3].parameters(), 0.05) for model in (one, other)]
    captured = capture_training(one, cross_entropy, optimizers[0], (x,), y)
    for parameter in one[3].parameters():
        parameter.grad = torch.ones_like(parameter)  # is dropped
    for _ in range(3):
        assert captured.run((x,), y).keys() == {"loss", "outputs"}
        optimizers[1].zero_grad()
        torch.autograd.backward(cross_entropy(other(x), y))
        optimizers[1].step()
    optimizers[1].zero_grad()
    for (name, found), wanted in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)
        assert (found.grad is None) == name.startswith("3."), name
        if found.grad is not None:
            torch.testing.assert_close(found.grad, wanted.grad)
