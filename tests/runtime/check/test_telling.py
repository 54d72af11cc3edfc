"""Which values can show that a plan computes other numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.runtime.check.shadow import Shadowed, checked_step, leaves
from threadcast.runtime.check.telling import tells

INF, NAN = float("inf"), float("nan")
SILENT = {
    "zeros": torch.zeros(4), "ones": torch.ones(2, 3), "a zero": torch.zeros(()), "nan": torch.full((3,), NAN),
    "a nan": torch.tensor(NAN), "infinite": torch.tensor([INF, -INF]), "masked": torch.tensor([1.0, 1.0, -INF]),
    "complex": torch.zeros(3, dtype=torch.complex64), "half": torch.ones(5, dtype=torch.bfloat16),
}  # fmt: skip
TELLING = {
    "numbers": torch.tensor([1.0, 2.0]), "a number": torch.tensor(3.0), "masked": torch.tensor([1.0, 2.0, -INF]),
    "nothing": torch.zeros(0), "integers": torch.zeros(3, dtype=torch.int64), "no tensor": 0.0,
    "complex": torch.tensor([1 + 2j, 1 + 2j]).conj(), "sparse": torch.eye(3).to_sparse(),
}  # fmt: skip


@pytest.mark.parametrize("value", SILENT.values(), ids=SILENT)
def test_what_is_constant_or_not_finite_shows_nothing(value: Tensor) -> None:
    assert not tells(value)


@pytest.mark.parametrize("value", TELLING.values(), ids=TELLING)
def test_different_numbers_show_something(value: Any) -> None:
    assert tells(value)


def test_of_what_moves_the_movement_counts() -> None:
    before = torch.randn(3, 4)
    assert not tells(before.clone(), before)
    assert tells(before * 2, before)


class Branch(nn.Module):
    """A residual branch that begins with zeros; a bias before a norm, a buffer and an argument that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.down = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2, bias=False)
        self.up = nn.Linear(2, 6, bias=False)
        nn.init.zeros_(self.up.weight)
        self.register_buffer("scale", torch.ones(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x @ self.scale))
        result: Tensor = x + self.up(self.down(x))
        return result


def test_a_branch_that_begins_with_zeros_tells_from_the_second_step_on() -> None:
    torch.manual_seed(0)
    model, arguments = Branch().double(), (torch.randn(8, 6).double(), torch.randn(8, 6).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    shadowed = Shadowed(step, step, model, optimizer, lambda loss: {"loss": loss})
    checked = [checked_step(shadowed, step, arguments, None) for _ in range(3)]
    assert [one.tells for one in checked] == [False, True, True]
    assert [one.difference for one in checked] == [None] * 3


@pytest.mark.parametrize(("shape", "tells"), [((4,), True), ((1, 1, 4), True), ((1, 4), False), ((2, 2, 1), False)])
def test_a_scale_that_does_not_move_hides_nothing(shape: tuple[int, ...], tells: bool) -> None:
    """As those of layers that scale each channel, by which an image of tokens is multiplied."""
    model = nn.Linear(4, 4)
    model.register_parameter("scale", nn.Parameter(torch.full(shape, 1e8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) * (model.scale * 1e-8).sum()).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    checked = checked_step(Shadowed(step, step, model, optimizer, leaves), step, (torch.randn(3, 4),), None)
    assert bool((model.scale == 1e8).all())
    assert checked.tells == tells
