"""Small networks for optimizers: ordinary parameters, and all that are out of the ordinary."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """Two branches; the real types also have batch norm, which complex numbers have not."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 16), nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        both = self.left(x).tanh() + self.right(x)
        result: Tensor = self.out(both if both.is_complex() else self.norm(both))
        return result


class OddParameters(nn.Module):
    """Parameters of no dimension, of no element, of one, of 17, transposed, tied, frozen, and without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0, 8))
        self.one = nn.Parameter(torch.ones(1))
        self.seventeen = nn.Parameter(torch.linspace(-1, 1, 17))
        self.transposed = nn.Parameter(torch.randn(8, 8).t())
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(8, 8), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((x, self.nothing)) @ self.transposed * self.scale
        x = self.second(self.first(x).tanh()) + x @ self.frozen
        return x.sum(1, keepdim=True) * self.seventeen + self.one
