"""Before an optimizer's first update its state is empty, as in eager PyTorch, though steps were captured or raised."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import threadcast

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


class Root(nn.Module):
    """A linear layer behind a Cholesky root, which raises for matrices that have none. One parameter is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(3, 3).double(), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(torch.linalg.cholesky(x))
        return found


def loss(found: Tensor, target: Tensor) -> Tensor:
    return (found - target).square().mean()


OPTIMIZERS: list[Callable[[Iterable[nn.Parameter]], Optimizer]] = [
    AdamW,
    lambda given: Adam(given, amsgrad=True),
    lambda given: SGD(given, lr=0.1, momentum=0.9),
]
GOOD, BAD, TARGET = torch.eye(3).double(), -torch.eye(3).double(), torch.ones(3, 3).double()


def same(found: Any, wanted: Any) -> bool:
    """Whether two state_dicts are equal, in the order of their entries, too."""
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[name], wanted[name]) for name in wanted)
    return torch.allclose(found, wanted) if isinstance(wanted, Tensor) else bool(found == wanted)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("raises", [0, 5])
@pytest.mark.parametrize("example", [(), (GOOD, TARGET)])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_state_is_as_pytorchs_before_the_first_update_and_after_it(
    make: Callable[[Iterable[nn.Parameter]], Optimizer], example: tuple[Tensor, ...], raises: int, begun: bool
) -> None:
    torch.manual_seed(0)
    model = Root()
    twin = copy.deepcopy(model)
    optimizer, twins = make(model.parameters()), make(twin.parameters())

    def eagerly(x: Tensor) -> Tensor:
        twins.zero_grad()
        value = loss(twin(x), TARGET)
        torch.autograd.backward(value)
        twins.step()
        twins.zero_grad()
        return value.detach()

    with closing(threadcast.optimize_training(model, loss, optimizer, *example)) as step:
        assert not optimizer.state
        assert optimizer.state_dict() == twins.state_dict()
        if begun:  # by other code of the caller
            for one, of in ((model, optimizer), (twin, twins)):
                torch.autograd.backward(loss(one(GOOD), TARGET))
                of.step()
        for _ in range(raises):
            with pytest.raises(torch.linalg.LinAlgError):
                step(BAD, TARGET)
            assert same(optimizer.state_dict(), twins.state_dict())
        for n in range(30):
            x = GOOD * (1 + n / 10)
            torch.testing.assert_close(step(x, TARGET), eagerly(x))
            assert same(optimizer.state_dict(), twins.state_dict())
        assert "plan" in str(step)


def test_a_step_that_was_captured_from_an_example_is_not_captured_again() -> None:
    model = Root()
    with closing(threadcast.optimize_training(model, loss, AdamW(model.parameters()), GOOD, TARGET)) as step:
        before = step._optimized._table.tunings
        step(GOOD, TARGET)
        assert len(before) == 1
        assert step._optimized._table.tunings == before
