"""Indices are compared by what they point at: a near tie refuses nothing, an index of another value is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.check.shadow import Checked, Shadowed, checked_step, leaves

INDICES: dict[str, Callable[[Tensor], Any]] = {
    "max pool": lambda x: functional.max_pool2d(x * 3, 2, return_indices=True),
    "max pool in 3 dimensions": lambda x: functional.max_pool3d(x * 3, 2, return_indices=True),
    "adaptive max pool": lambda x: functional.adaptive_max_pool2d(x * 3, 2, return_indices=True),
    "max": lambda x: (x * 3).max(2), "min": lambda x: (x * 3).min(-1, keepdim=True),
    "argmax": lambda x: (x * 3).argmax(1), "argmax of all": lambda x: (x * 3).argmax(),
    "argmin": lambda x: (x * 3).argmin(3, keepdim=True), "median": lambda x: (x * 3).median(0),
    "sort": lambda x: (x * 3).sort(), "argsort": lambda x: (x * 3).argsort(1), "topk": lambda x: (x * 3).topk(2, 3),
    "kthvalue": lambda x: (x * 3).kthvalue(3), "cummax": lambda x: (x * 3).cummax(2),
}  # fmt: skip


def _near_ties() -> Tensor:
    """Numbers that are one of four in all their digits but the last."""
    x = torch.randint(1, 5, (4, 4, 8, 8), generator=torch.Generator().manual_seed(0)).float()
    return x * (1 + 1.2e-7 * torch.randint(0, 3, x.shape, generator=torch.Generator().manual_seed(1)))


def _checked(function: Callable[[Tensor], Any], run: Callable[[Tensor], Any]) -> Checked:
    x = _near_ties()
    return checked_step(Shadowed(function, function, None, None, leaves), run, (x,), capture_forward(function, x))


@pytest.mark.parametrize("name", INDICES)
def test_a_near_tie_refuses_nothing_and_another_value_is_found(name: str) -> None:
    function = INDICES[name]
    others = torch.randint(-3, 4, (4, 4, 8, 8), generator=torch.Generator().manual_seed(2))
    rounded = _near_ties() * (1 + 1.2e-7 * others)
    integers = [one for one in leaves(function(rounded)).values() if one.dtype is torch.int64]
    wanted = [one for one in leaves(function(_near_ties())).values() if one.dtype is torch.int64]
    assert not all(map(torch.equal, integers, wanted))
    assert _checked(function, lambda _: function(rounded)).difference is None
    found = _checked(function, lambda x: [one + (one.dtype is torch.int64) for one in leaves(function(x)).values()])
    assert found.difference is not None
    swapped = _near_ties().flip(2)

    def wrong(x: Tensor) -> list[Tensor]:
        right, other = leaves(function(x)).values(), leaves(function(swapped)).values()
        return [b if a.dtype is torch.int64 else a for a, b in zip(right, other, strict=True)]

    assert _checked(function, wrong).difference is not None
