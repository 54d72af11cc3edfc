"""A loss, a model or a function that reads other values than at first: an optimised step computes with the new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import threadcast
from threadcast.runtime.watching.model import Patience

pytestmark = pytest.mark.usefixtures("one_thread")

FACTOR = 1.0
SETTINGS = {"factor": 1.0, "list": [1.0]}
WEIGHTS = torch.ones(2, dtype=torch.float64)


class Holder:
    """A trainer as many people write one: much of what it holds has nothing to do with its loss."""

    shared = 1.0

    def __init__(self) -> None:
        self.factor, self.steps = 1.0, 0
        self.options = SimpleNamespace(factor=1.0)

    def loss(self, found: Tensor, wanted: Tensor) -> Tensor:
        return mse_loss(found, wanted) * self.factor * self.options.factor * self.shared


@dataclass(slots=True)
class Slotted:
    """A callable object without a dictionary."""

    factor: float = 1.0

    def __call__(self, found: Tensor, wanted: Tensor) -> Tensor:
        return mse_loss(found, wanted) * self.factor


class Scaled(nn.Module):
    """A loss module with a number, a private one, a tensor, and a module below."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self._hidden, self.table = 1.0, 1.0, torch.ones((), dtype=torch.float64)
        self.below = nn.Dropout(0.0)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def forward(self, found: Tensor, wanted: Tensor) -> Tensor:
        below: Tensor = self.below(found)
        return mse_loss(below, wanted) * self.factor * self._hidden * self.table * self.scale


Changes = tuple[Callable[[Tensor, Tensor], Tensor], Callable[[], Any]]


def of_a_closure() -> Changes:
    factor = 1.0

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return lambda found, wanted: mse_loss(found, wanted) * factor, change


def of_an_inner_function() -> Changes:
    table = {"factor": 1.0}

    def scaled(value: Tensor) -> Tensor:
        return value * table["factor"]

    return lambda found, wanted: scaled(mse_loss(found, wanted)), lambda: table.update(factor=3.0)


def of_a_global() -> Changes:
    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        return mse_loss(found, wanted) * FACTOR

    return loss, lambda: globals().update(FACTOR=3.0)


def of_a_global_list() -> Changes:
    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        return mse_loss(found, wanted) * SETTINGS["list"][0]  # type: ignore[index]

    return loss, lambda: SETTINGS["list"].__setitem__(0, 3.0)  # type: ignore[attr-defined]


def of_a_global_tensor() -> Changes:
    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        return (WEIGHTS * (found - wanted) ** 2).mean()

    return loss, lambda: globals().update(WEIGHTS=torch.tensor([2.0, 3.0], dtype=torch.float64))


def of_a_partial() -> Changes:
    loss = partial(lambda found, wanted, factor: mse_loss(found, wanted) * factor, factor=1.0)
    return loss, lambda: loss.keywords.update(factor=3.0)


def of_a_default() -> Changes:
    def loss(found: Tensor, wanted: Tensor, factor: float = 1.0) -> Tensor:
        return mse_loss(found, wanted) * factor

    return loss, lambda: setattr(loss, "__defaults__", (3.0,))


def of_an_array() -> Changes:
    factors = np.ones(2)

    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        return mse_loss(found, wanted) * float(factors[0])

    return loss, lambda: factors.__setitem__(0, 3.0)


def of_a_bound_method(name: str) -> Changes:
    holder = Holder()
    held: Any = holder.options if name == "options.factor" else holder
    return holder.loss, lambda: setattr(held, name.rpartition(".")[2], 3.0)


def of_a_class() -> Changes:
    class Local(Holder):
        shared = 1.0

    return Local().loss, lambda: setattr(Local, "shared", 3.0)


def of_a_slot() -> Changes:
    loss = Slotted()
    return loss, lambda: setattr(loss, "factor", 3.0)


def of_a_module(change: Callable[[Scaled], Any]) -> Changes:
    loss = Scaled()
    return loss, lambda: change(loss)


def in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(3)


LOSSES: dict[str, Callable[[], Changes]] = {
    "a closure": of_a_closure,
    "an inner function's dictionary": of_an_inner_function,
    "a global variable": of_a_global,
    "a global list": of_a_global_list,
    "a global tensor": of_a_global_tensor,
    "a partial": of_a_partial,
    "a default argument": of_a_default,
    "an array": of_an_array,
    "a bound method's object": lambda: of_a_bound_method("factor"),
    "an object of a bound method's object": lambda: of_a_bound_method("options.factor"),
    "an attribute that hides the class's": lambda: of_a_bound_method("shared"),
    "a class": of_a_class,
    "a slot": of_a_slot,
    "a module's number": lambda: of_a_module(lambda m: setattr(m, "factor", 3.0)),
    "a module's private number": lambda: of_a_module(lambda m: setattr(m, "_hidden", 3.0)),
    "another tensor": lambda: of_a_module(lambda m: setattr(m, "table", m.table * 3)),
    "another buffer": lambda: of_a_module(lambda m: setattr(m, "scale", m.scale * 3)),
    "a tensor in place": lambda: of_a_module(lambda m: in_place(m.table)),
    "a buffer's data": lambda: of_a_module(lambda m: setattr(m.scale, "data", m.scale * 3)),
    "a layer below": lambda: of_a_module(lambda m: setattr(m, "below", nn.Softmax(-1))),
    "a number of a layer below": lambda: of_a_module(lambda m: setattr(m.below, "p", 1.0)),
}


@pytest.fixture(autouse=True)
def globals_as_they_were() -> Iterator[None]:
    before = {"FACTOR": FACTOR, "WEIGHTS": WEIGHTS, "SETTINGS": {**SETTINGS, "list": [1.0]}}
    yield
    globals().update(before)


def line() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()


def numbers(seed: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(4, n, generator=drawn, dtype=torch.float64) for n in (3, 2))  # type: ignore[return-value]


def eager_step(model: nn.Module, loss: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    value: Tensor = loss(model(x), y)
    torch.autograd.backward(value)
    optimizer.step()
    return value.detach()


@pytest.mark.parametrize("make", LOSSES.values(), ids=list(LOSSES))
def test_a_loss_that_reads_another_value_is_computed_with_it(make: Callable[[], Changes]) -> None:
    loss, change = make()
    mine, eager = line(), line()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, eager)]
    with closing(threadcast.optimize_training(mine, loss, optimizers[0], cores=1)) as step:
        for seed in range(6):
            if seed == 3:
                change()
            x, y = numbers(seed)
            torch.testing.assert_close(step(x, y), eager_step(eager, loss, optimizers[1], x, y))
        assert step.reports[0].reason == ""


def test_an_annealed_loss_is_right_at_every_step_and_captured_again_when_it_stands_still() -> None:
    loss, mine, eager = Scaled(), line(), line()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, eager)]

    def both(steps: Iterable[int]) -> None:
        for seed in steps:
            loss.factor = max(0.1, 1 - seed / 20)
            x, y = numbers(seed)
            torch.testing.assert_close(step(x, y), eager_step(eager, loss, optimizers[1], x, y))

    with closing(threadcast.optimize_training(mine, loss, optimizers[0], cores=1)) as step:
        with pytest.warns(UserWarning, match="Scaled.factor changes from call to call"):
            both(range(18))
        assert [report.runs for report in step.reports] == ["default"], "nothing is captured for a single step"
        both(range(18, 18 + 2 * Patience.LEAST_REST))
        assert [report.reason for report in step.reports] == [""]
