"""A step of training as a user of PyTorch writes it, to compare captured steps with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Model = TypeVar("Model", bound=nn.Module)


def train(
    model: Model, optimizer: Optimizer, loss: Callable[[Model], Tensor], *, most_norm: float | None = None
) -> tuple[Tensor, float]:
    """Train by one step on `loss(model)`; return the loss, and the norm of gradients, which `most_norm` bounds."""
    optimizer.zero_grad()
    value, norm = loss(model), 0.0
    torch.autograd.backward(value)
    if most_norm is not None:
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), most_norm))
    optimizer.step()
    optimizer.zero_grad()
    return value.detach(), norm
