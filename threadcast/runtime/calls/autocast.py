"""Which autocast context is around a call, and whether PyTorch keeps casts of weights in it."""

from __future__ import annotations

import torch
from torch import nn


class AutocastContexts:
    """Tells the autocast contexts around calls apart.

    In one context PyTorch casts each weight once and keeps the cast, also where the weight is written to afterwards: an
    update of the weights is not seen before the context ends. PyTorch does not say which context is on, so a weight of
    this object's own is written to, and its cast tells.
    """

    def __init__(self) -> None:
        self._weight: nn.Parameter | None = None
        self._found, self._number = 0.0, 0

    def number(self) -> int:
        """Return a number of the autocast context that is on, as long as it is on; another in each other context.

        Where autocast is off, or keeps no casts, the numbers say nothing.
        """
        with torch.inference_mode(False), torch.no_grad():
            if self._weight is None:
                self._weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.float32))
            self._weight.fill_(1.0 - self._found)
            found = float(torch.mm(torch.ones(1, 1, dtype=torch.float32), self._weight))
        if found != self._found:
            self._found = found
            self._number += 1
        return self._number


def keeps_casts() -> bool:
    """Return whether autocast is on for the CPU, and PyTorch casts each weight once in its context."""
    return torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()


_contexts = AutocastContexts()


def autocast_contexts() -> AutocastContexts:
    """Return the process's: PyTorch's casts are those of all models."""
    return _contexts
