"""Small parameters are updated together, with the bits of updates one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer

from tests.runtime.compiler import needs_compiler
from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, Machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.operators.updates import COUNT, TOGETHER, with_updates_together
from threadcast.runtime.plans.sequential import sequential

pytestmark = needs_compiler

Made = Callable[[list[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Made] = {
    "SGD": partial(SGD, lr=0.1), "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": partial(Adam, lr=0.1), "AdamW": partial(AdamW, lr=0.1, amsgrad=True, weight_decay=0.2),
}  # fmt: skip


def layers(wide: int = 12) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, wide), nn.LayerNorm(wide), nn.Tanh(), nn.Linear(wide, 6), nn.Linear(6, 3))


def captured_step(model: nn.Module, optimizer: Optimizer) -> Captured:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([0, 1, 2, 0, 1])
    torch.autograd.backward(cross_entropy(model(x), target))
    optimizer.step()  # its first step makes its state
    optimizer.zero_grad()
    return capture_training(model, cross_entropy, optimizer, (x,), target)


def numbers(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [value.detach().clone() for value in [*model.parameters(), *states]]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_together_have_the_bits_of_updates_one_by_one(name: str, machine: Machine) -> None:
    found = []
    for together in (False, True):
        model = layers()
        optimizer = OPTIMIZERS[name](list(model.parameters()))
        captured = captured_step(model, optimizer)
        if together:
            captured = with_updates_together(captured)
            kinds = Counter(op.kind for op in captured.graph.ops)
            assert (kinds[TOGETHER], kinds[COUNT]) == (1, "Adam" in name)
        plan = sequential(captured.graph, machine, Case(1))  # numbers of products depend on how many threads
        with closing(Engine(captured, plan, machine)) as engine:
            for _ in range(3):
                engine.run(captured.bind())
        found.append(numbers(model, optimizer))
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


def sharing_a_step(optimizer: Optimizer, model: nn.Sequential) -> None:
    first, second, *_ = model.parameters()
    optimizer.state[first]["step"] = optimizer.state[second]["step"]


def test_each_update_that_must_stays_alone() -> None:
    model, large = layers(), layers(wide=2000)
    optimizer = Adam(large.parameters())
    captured = with_updates_together(captured_step(large, optimizer))
    assert Counter(op.kind for op in captured.graph.ops)["adam_update"] == 2  # of the weights that are large
    optimizer = Adam(model.parameters())
    captured_step(model, optimizer)
    sharing_a_step(optimizer, model)
    captured = captured_step(model, optimizer)
    assert with_updates_together(captured) is captured


class OfTwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x).double())
        return found


def test_parameters_of_each_type_are_updated_apart() -> None:
    found = []
    for together in (False, True):
        torch.manual_seed(0)
        model = OfTwoTypes()
        optimizer = Adam(model.parameters(), lr=0.1)
        captured = captured_step(model, optimizer)
        if together:
            captured = with_updates_together(captured)
            assert Counter(op.kind for op in captured.graph.ops)[TOGETHER] == 2
        captured.run()
        found.append(numbers(model, optimizer))
    assert all(one.equal(other) for one, other in zip(*found, strict=True))
