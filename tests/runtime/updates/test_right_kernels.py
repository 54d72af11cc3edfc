"""Steps by fused kernels give the numbers of optimizers' own loops, and are made only where these are right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.runtime.updates.pairs import OPTIMIZERS, Made, Pair, some_gradients, some_parameters
from threadcast.runtime.updates.fused_fit import FusedFit
from threadcast.runtime.updates.fused_updates import FusedUpdates

SGD_WITH_MOMENTUM, ADAM, ADAMW = OPTIMIZERS[1], OPTIMIZERS[4], OPTIMIZERS[6]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_fused_steps_give_the_numbers_of_the_loop(updates: FusedUpdates, make: Made) -> None:
    pair = Pair(updates, make, some_parameters())
    pair.steps(6)
    assert all(pair.fused[-2:])
    assert pair.agree()
    mine, theirs = pair.mine.state_dict(), pair.theirs.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()


def reordered(gradients: list[Tensor]) -> list[Any]:
    return [one.t().contiguous().t() if one.dim() == 2 else one for one in gradients]


@pytest.mark.parametrize(
    ("gradients", "fused"),
    [
        (reordered, False),
        (lambda given: [given[0].to_sparse(), *given[1:]], False),
        (lambda given: [None, *given[1:]], True),
    ],
    ids=["in another order", "sparse", "one missing"],
)
def test_gradients_of_another_kind(
    updates: FusedUpdates, gradients: Callable[[list[Tensor]], list[Any]], fused: bool
) -> None:
    pair = Pair(updates, SGD_WITH_MOMENTUM, some_parameters())
    pair.steps(6)
    version = pair.parameters[0]._version
    pair.steps(5, gradients=lambda parameters, step: gradients(some_gradients(parameters, step)))
    assert set(pair.fused[-5:]) == {fused}
    assert (pair.parameters[0]._version == version) == fused, "a parameter without gradient is left as it is"
    assert pair.agree()
    pair.steps(20)
    assert pair.fused[-1]
    assert pair.agree()


def count_as(make: Callable[[Tensor], Tensor]) -> Callable[[Optimizer, list[nn.Parameter]], None]:
    """A change of the tensor in which each parameter's steps are counted."""

    def change(optimizer: Optimizer, _: object) -> None:
        for state in optimizer.state.values():
            state["step"] = make(state["step"])

    return change


def set_all(name: str, value: object) -> Callable[[Optimizer, list[nn.Parameter]], None]:
    def change(optimizer: Optimizer, _: object) -> None:
        for group in optimizer.param_groups:
            group[name] = value

    return change


def load(optimizer: Optimizer, _: object) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    for one in state["state"].values():
        one["momentum_buffer"] *= 2
    optimizer.load_state_dict(state)


def add_group(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    parameters.append(nn.Parameter(torch.ones(7)))
    optimizer.add_param_group({"params": parameters[-1:], "lr": 0.1})


def reorder_before_the_step(optimizer: Optimizer, _: object) -> None:
    """After the gradients were looked at."""

    def reorder(optimizer: Optimizer, *_: object) -> None:
        for one in optimizer.param_groups[0]["params"]:
            (one.grad,) = reordered([one.grad])

    optimizer.register_step_pre_hook(reorder)


def share_count(optimizer: Optimizer, _: object) -> None:
    """The loop counts it once for each parameter, in between their updates."""
    count = torch.tensor(60.0)
    count_as(lambda _: count)(optimizer, [])


@pytest.mark.parametrize(
    ("make", "change", "fused"),
    [
        (SGD_WITH_MOMENTUM, set_all("nesterov", 0), False),  # `0 == False`, but kernels take no number for it
        (SGD_WITH_MOMENTUM, set_all("lr", 0.5), True),
        (SGD_WITH_MOMENTUM, set_all("foreach", False), False),
        (SGD_WITH_MOMENTUM, load, True),
        (SGD_WITH_MOMENTUM, add_group, True),
        (SGD_WITH_MOMENTUM, reorder_before_the_step, False),
        (ADAMW, set_all("weight_decay", 0.0), True),
        (ADAM, lambda optimizer, _: optimizer.state.clear(), True),
        (ADAM, count_as(lambda count: count.to(torch.int64)), False),
        (ADAM, count_as(torch.clone), True),
        (ADAM, share_count, False),
    ],
)
def test_what_is_changed_between_steps_is_followed(
    updates: FusedUpdates, make: Made, change: Callable[[Optimizer, list[nn.Parameter]], None], fused: bool
) -> None:
    pair = Pair(updates, make, some_parameters())
    pair.steps(6)
    for optimizer, parameters in ((pair.mine, pair.parameters), (pair.theirs, pair.others)):
        change(optimizer, parameters)
    pair.steps(20)
    assert (any(pair.fused[-20:]), pair.fused[-1]) == (fused, fused)
    assert pair.agree()


def test_gradients_that_come_and_go_are_not_looked_at_in_each_step(
    updates: FusedUpdates, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(updates, SGD_WITH_MOMENTUM, some_parameters())
    looks = []
    right = FusedFit._right
    monkeypatch.setattr(FusedFit, "_right", lambda *given: looks.append(1) or right(*given))  # type: ignore[func-returns-value]

    def some(parameters: list[nn.Parameter], step: int) -> list[Any]:
        found: list[Any] = some_gradients(parameters, step)
        found[step % len(found)] = None
        return found

    pair.steps(2 * len(pair.parameters))  # all have state
    looks.clear()
    pair.steps(200, gradients=some)
    assert 0 < len(looks) < 20
    assert pair.agree()


def test_writes_are_counted(updates: FusedUpdates) -> None:
    """PyTorch's fused kernels do not: a backward pass that needs the weights from before would be wrong."""
    pair = Pair(updates, ADAMW, some_parameters())
    pair.steps(6)
    weight = pair.parameters[2]
    average = pair.mine.state[weight]["exp_avg"]
    versions = weight._version, average._version
    given = torch.ones(13, requires_grad=True)
    loss = (weight @ given).sum()
    pair.steps(1)
    assert pair.fused[-1]
    assert weight._version > versions[0]
    assert average._version > versions[1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)


@pytest.mark.parametrize("make", [SGD_WITH_MOMENTUM, ADAM])
def test_a_parameter_that_has_grown_raises_as_in_pytorch(updates: FusedUpdates, make: Made) -> None:
    """Its state has equal strides, and the kernels would write behind its end."""
    pair = Pair(updates, make, some_parameters())
    pair.steps(6)
    for parameters in (pair.parameters, pair.others):
        parameters[4].data = torch.cat([parameters[4].data, torch.ones(100, 40)])
    for one, parameters in ((pair.mine, pair.parameters), (pair.theirs, pair.others)):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="must match the size"):
                one.step()
