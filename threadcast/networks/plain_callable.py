"""A plain function in the place of a torch.nn.Module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class PlainCallable(nn.Module):
    """A module that calls `function`; it has no parameters of its own, so there is nothing to train."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)
