"""Steps by fused kernels give the numbers of optimizers' own loops, and are made only where these are right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.runtime.updates.pairs import OPTIMIZERS, Made, Pair, some_gradients, some_parameters
from threadcast.runtime.updates.fused_fit import FusedFit
from threadcast.runtime.updates.fused_updates import FusedUpdates


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_fused_steps_give_the_numbers_of_the_loop(updates: FusedUpdates, make: Made) -> None:
    pair = Pair(updates, make, some_parameters())
    pair.steps(6)
    assert all(pair.fused[-2:])
    assert pair.agree()
    mine, theirs = pair.mine.state_dict(), pair.theirs.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()


def test_a_gradient_in_another_order_goes_by_the_loop(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)

    def reordered(parameters: list[nn.Parameter], step: int) -> list[Tensor]:
        found = some_gradients(parameters, step)
        found[2] = found[2].t().contiguous().t()
        return found

    pair.steps(5, gradients=reordered)
    assert not any(pair.fused[-5:])
    assert pair.agree()
    pair.steps(20)
    assert pair.fused[-1]
    assert pair.agree()


def test_a_parameter_without_gradient_is_left_as_it_is(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[4], some_parameters())
    pair.steps(6)

    def some(parameters: list[nn.Parameter], step: int) -> list[Any]:
        return [None, *some_gradients(parameters, step)[1:]]

    version = pair.parameters[0]._version
    pair.steps(5, gradients=some)
    assert pair.fused[-1]
    assert pair.parameters[0]._version == version
    assert pair.agree()


def test_gradients_that_come_and_go_are_not_looked_at_in_each_step(
    updates: FusedUpdates, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
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


def test_a_sparse_gradient_goes_by_the_loop(updates: FusedUpdates) -> None:
    parameters = [nn.Parameter(torch.ones(4, 3))]
    pair = Pair(updates, lambda given: SGD(given, lr=0.01), parameters)
    pair.steps(6)
    assert pair.fused[-1]

    def sparse(given: list[nn.Parameter], step: int) -> list[Any]:
        return [one.to_sparse() for one in some_gradients(given, step)]

    pair.steps(5, gradients=sparse)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_numbers_that_change_are_followed(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[6], some_parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(one, 10, gamma=0.5) for one in (pair.mine, pair.theirs)]
    for _ in range(200):
        pair.steps(1)
        for schedule in schedules:
            schedule.step()
    for one in (pair.mine, pair.theirs):
        one.param_groups[0]["weight_decay"] = 0.0
    pair.steps(10)
    assert pair.fused[-1]
    assert pair.agree()


def test_a_loaded_state_is_used(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    saved = copy.deepcopy(pair.theirs.state_dict())
    pair.steps(5)
    for one in (pair.mine, pair.theirs):
        one.load_state_dict(copy.deepcopy(saved))
    pair.steps(5)
    assert pair.fused[-1]
    assert pair.agree()


def test_a_state_that_was_emptied_begins_anew(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[3], some_parameters())
    pair.steps(6)
    for one in (pair.mine, pair.theirs):
        one.state.clear()
    pair.steps(1)
    assert not pair.fused[-1]
    pair.steps(10)
    assert pair.agree()


def test_a_group_that_is_added_is_updated(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    for parameters, one in ((pair.parameters, pair.mine), (pair.others, pair.theirs)):
        parameters.append(nn.Parameter(torch.ones(7)))
        one.add_param_group({"params": parameters[-1:], "lr": 0.1})
    pair.steps(20)
    assert pair.fused[-1]
    assert pair.agree()


def test_writes_are_counted(updates: FusedUpdates) -> None:
    """PyTorch's fused kernels do not: a backward pass that needs the weights from before would be wrong."""
    pair = Pair(updates, OPTIMIZERS[6], some_parameters())
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


@pytest.mark.parametrize("make", [OPTIMIZERS[1], OPTIMIZERS[4]])
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


def test_counts_of_steps_that_kernels_do_not_take_keep_the_loop(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[4], some_parameters())
    pair.steps(6)
    for one in (pair.mine, pair.theirs):
        for state in one.state.values():
            state["step"] = state["step"].to(torch.int64)
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_a_shared_count_of_steps_keeps_the_loop(updates: FusedUpdates) -> None:
    """The loop counts it once for each parameter, in between their updates."""
    pair = Pair(updates, OPTIMIZERS[4], some_parameters())
    pair.steps(6)
    for one in (pair.mine, pair.theirs):
        count = torch.tensor(60.0)
        for state in one.state.values():
            state["step"] = count
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()
