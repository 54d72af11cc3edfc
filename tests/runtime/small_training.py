"""Training a small network, optimised and by PyTorch, so that both can be compared closely."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.waiting import attempts
from threadcast.runtime.doors.optimize import OptimizedCall, OptimizedStep


class Net(nn.Module):
    """Convolutions in two branches, running statistics, a shared weight."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.norm = nn.BatchNorm2d(6)
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        both = self.norm(self.left(x).relu() + self.right(x)).mean((2, 3))
        result: Tensor = self.out(self.mix(self.mix(both).tanh()))
        return result


def net() -> Net:
    torch.manual_seed(0)
    return Net().double()  # rounding errors of single precision grow to some 1e-4 in 50 steps of training


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batch(seed: int, size: int = 4) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 8, 8, generator=made, dtype=torch.float64), torch.randint(0, 4, (size,), generator=made)


def train_eagerly(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


def same_state(one: nn.Module, other: nn.Module) -> None:
    for (name, found), wanted in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def run_until_settled(step: OptimizedCall | OptimizedStep, call: Callable[[int], object]) -> None:
    """`call` with 0, 1, 2 and so on until each kind of arguments has been compared, 10 times at least."""
    for number in attempts():
        known = not any(report.measuring for report in step.reports)
        if number >= 10 and known and all(one.settled for one in step._optimized._table.tunings):
            return
        call(number)
