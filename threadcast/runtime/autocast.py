"""Whether the autocast context around a call is the one that was around the call before."""

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
        self._found = 0.0

    def is_as_before(self) -> bool:
        """Return whether autocast is on by the same context as at the last call of this method that found it on."""
        if not (torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()):
            return False
        with torch.inference_mode(False), torch.no_grad():
            if self._weight is None:
                self._weight = nn.Parameter(torch.zeros(1, 1))
            self._weight.fill_(1.0 - self._found)
            found = float(torch.mm(torch.ones(1, 1), self._weight))
        as_before = found == self._found
        self._found = found
        return as_before


_contexts = AutocastContexts()


def autocast_contexts() -> AutocastContexts:
    """Return the process's: PyTorch's casts are those of all models."""
    return _contexts
