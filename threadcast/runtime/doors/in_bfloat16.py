"""A module under autocast to bfloat16, whose graphs hold casts of its weights that were cast once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers that use their weights only in operators whose arguments autocast casts to bfloat16; not their subclasses."""


class InBfloat16(nn.Module):
    """Calls `module` under autocast to bfloat16.

    While a call is captured, linear and convolutional layers have weights that are in bfloat16 already, so that a graph
    does not cast them in each run. `cast_again` brings these up to date.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = False
        parts = [part for part in module.modules() if type(part) in _LAYERS]
        self._places = [
            (part._parameters, name, weight)
            for part in parts
            for name, weight in part._parameters.items()
            if weight is not None and weight.dtype is torch.float32
        ]
        with torch.inference_mode(False), torch.no_grad():
            casts = [nn.Parameter(weight.bfloat16(), requires_grad=False) for _, _, weight in self._places]
        self.casts = nn.ParameterList(casts).eval()

    def cast_again(self) -> None:
        """Cast all weights again, as they are now."""
        with torch.inference_mode(False), torch.no_grad():
            for cast, (_, _, weight) in zip(self.casts, self._places, strict=True):
                cast.copy_(weight)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        casts = list(self.casts)
        with torch.autocast("cpu", torch.bfloat16):
            if casts and isinstance(casts[0], FakeTensor):
                with self._exchanged(casts):
                    return self.module(*args, **kwargs)
            return self.module(*args, **kwargs)

    @contextmanager
    def _exchanged(self, casts: list[Tensor]) -> Iterator[None]:
        """Within the context the layers have these weights."""
        before = [held[name] for held, name, _ in self._places]
        for (held, name, _), cast in zip(self._places, casts, strict=True):
            held[name] = cast  # type: ignore[assignment]
        try:
            yield
        finally:
            for (held, name, _), weight in zip(self._places, before, strict=True):
                held[name] = weight
