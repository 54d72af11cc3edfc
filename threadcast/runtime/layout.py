"""Memory formats of a network: as its parameters are given, or channels last, in which convolutions are faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.runtime.tuning.variants import MemoryFormat


def layouts_of(model: nn.Module | None, example: Any) -> tuple[MemoryFormat, ...]:
    """The layouts that may differ in speed: channels last only matters to convolutions in two dimensions."""
    convolves = model is not None and any(isinstance(part, nn.Conv2d | nn.ConvTranspose2d) for part in model.modules())
    images = any(isinstance(leaf, Tensor) and leaf.dim() == 4 for leaf in pytree.tree_leaves(example))
    return tuple(MemoryFormat) if convolves and images else (MemoryFormat.AS_GIVEN,)


def converted(values: Any) -> Any:
    """`values` with images channels last."""
    return pytree.tree_map_only(Tensor, lambda x: x.contiguous(memory_format=_format(x)), values)


def _format(tensor: Tensor) -> torch.memory_format:
    images = tensor.dim() == 4 and tensor.is_floating_point()
    return torch.channels_last if images else torch.preserve_format if tensor.dim() != 4 else torch.contiguous_format


class Layouts:
    """Lets the parameters of a model and the optimizer's state lie in one layout or the other.

    The tensors stay the same objects with the same values; what changes is the order of their numbers in memory.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        self.current = MemoryFormat.AS_GIVEN
        self._optimizer = optimizer
        self._given = {parameter: parameter.stride() for parameter in model.parameters()}

    def set(self, layout: MemoryFormat) -> bool:
        """Let them lie as `layout` says; whether anything has moved."""
        if layout == self.current:
            return False
        with torch.no_grad():
            for tensor, parameter in self._images():
                if layout is MemoryFormat.CHANNELS_LAST:
                    tensor.data = tensor.detach().contiguous(memory_format=torch.channels_last)
                else:
                    given = torch.empty_strided(tensor.shape, self._given[parameter], dtype=tensor.dtype)
                    tensor.data = given.copy_(tensor.detach())
        self.current = layout
        return True

    def _images(self) -> Iterator[tuple[Tensor, nn.Parameter]]:
        """Parameters of four dimensions, and their state, each with its parameter."""
        for parameter in self._given:
            if parameter.dim() != 4:
                continue
            yield parameter, parameter
            state = self._optimizer.state.get(parameter, {}) if self._optimizer is not None else {}
            for value in state.values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value, parameter
