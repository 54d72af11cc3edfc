"""What operators return whose results' sizes depend on values (`x[mask]`, `nonzero`), once the values are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


_CTC = (aten._ctc_loss.default, aten._ctc_loss.Tensor)
_CTC_BACKWARD = (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)


def ctc_result(func: OpOverload, args: tuple[Any, ...]) -> Any:
    """Return what a CTC loss of (steps, batch, classes) or its gradient returns, as fakes; None for other operators.

    The loss's second result, which only its gradient reads, has the places of the longest target that there may be.
    """
    if func in _CTC_BACKWARD:
        return torch.empty_like(args[1], memory_format=torch.contiguous_format)
    if func not in _CTC or args[0].dim() != 3:
        return None
    scores, targets = args[:2]
    steps, batch = scores.shape[:2]
    return scores.new_empty(batch), scores.new_empty(batch, steps, 2 * targets.shape[-1] + 1)


def counted_result(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], count: Callable[[Tensor], int | None]
) -> Tensor | None:
    """Return what `func` returns, for fake tensors in an active mode; None for other operators and unknown counts.

    `count` returns the number of elements of a tensor that are not 0.
    """
    if kwargs:
        return None
    if func is aten.nonzero.default:
        return _positions(args[0], count)
    if func is aten.masked_select.default:
        values, mask = torch.broadcast_tensors(args[0], args[1])  # type: ignore[no-untyped-call]
        found = count(args[1])
        return None if found is None else values.new_empty(found * (mask.numel() // max(args[1].numel(), 1)))
    if func is not aten.index.Tensor:
        return None
    indices: list[Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype is not torch.bool:
            indices.append(index)
            continue
        positions = _positions(index, count)
        if positions is None:
            return None
        indices.extend(positions.unbind(1))
    return func(args[0], indices)  # type: ignore[no-any-return]


def _positions(mask: Tensor, count: Callable[[Tensor], int | None]) -> Tensor | None:
    """What `nonzero` returns: (elements that are not 0, dimensions), int64, one column after the other in memory."""
    found = count(mask)
    if found is None:
        return None
    return torch.empty_strided((found, mask.dim()), (1, found), dtype=torch.int64, device=mask.device)
