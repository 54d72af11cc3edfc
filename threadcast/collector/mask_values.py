"""Gives an op that runs alone masks that select as many elements as its shapes say (`x[mask]`, `nonzero`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from threadcast.capture.graph.values import Ref
from threadcast.collector.tensor_memory import all_memory
from threadcast.core.tensor import TensorSpec

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operators that take indices, of which masks may be some."""


def fill_masks(
    name: str,
    arguments: Mapping[str, Any],
    tensors: Sequence[Tensor],
    outputs: Sequence[TensorSpec],
    generator: torch.Generator,
) -> None:
    """Fill the masks among `tensors`, to which the arguments refer by `Ref`, for the operator `name` of ATen."""
    if name == "nonzero":
        _fill(tensors[arguments["self"].slot], outputs[0].shape[0], generator)
    elif name == "masked_select":
        _fill_for(arguments, tensors, outputs[0].shape[0], generator)
    elif name.removesuffix("_") == "masked_scatter":
        _fill_for(arguments, tensors, tensors[arguments["source"].slot].numel(), generator)
    elif name == "masked_scatter_backward":
        mask = tensors[arguments["mask"].slot]
        _fill(mask, min(torch.Size(arguments["sizes"]).numel(), mask.numel()), generator)
    elif name in INDEXING:
        indices = [tensors[index.slot] if isinstance(index, Ref) else None for index in arguments["indices"]]
        values = outputs[0].shape if name == "index" else tensors[arguments["values"].slot].shape
        selected = _selected(indices, tensors[arguments["self"].slot].dim(), values)
        for mask in indices:
            if mask is not None and mask.dtype is torch.bool and selected is not None:
                _fill(mask, selected, generator)


def _fill_for(
    arguments: Mapping[str, Any], tensors: Sequence[Tensor], selected: int, generator: torch.Generator
) -> None:
    """Fill the `mask` so that it selects so many elements, or all, of what it and `self` are broadcast to."""
    mask = tensors[arguments["mask"].slot]
    whole = torch.broadcast_shapes(mask.shape, tensors[arguments["self"].slot].shape)  # type: ignore[no-untyped-call]
    count = torch.Size(whole).numel()
    times = max(count // max(mask.numel(), 1), 1)
    _fill(mask, min(selected, count) // times, generator)


def _selected(indices: Sequence[Tensor | None], dims: int, values: Sequence[int]) -> int | None:
    """How many elements each mask selects, if `values` is the shape of what is selected; None where any number will do.

    They are one axis of it: the last that the indices make. These come in the place of the first index if all are side
    by side, else in front.
    """
    given = [(i, index) for i, index in enumerate(indices) if index is not None]
    if not any(index.dtype is torch.bool for _, index in given):
        return None
    numbers = [i for i, _ in given]
    before = numbers[0] if numbers == list(range(numbers[0], numbers[-1] + 1)) else 0
    indexed = sum(index.dim() if index.dtype is torch.bool else 1 for _, index in given)
    axis = len(values) - 1 - (dims - indexed - before)
    return values[axis] if axis >= 0 else None


def _fill(mask: Tensor, selected: int, generator: torch.Generator) -> None:
    memory = all_memory(mask)
    times = mask.numel() // max(memory.numel(), 1)
    if times > 1:  # an expanded mask, whose elements share memory
        memory.copy_(torch.randperm(memory.numel(), generator=generator) < selected // times)
    else:
        places = torch.randperm(mask.numel(), generator=generator).view(mask.shape)
        mask.copy_(places < selected)
