"""Whether a tensor's memory is also that of other tensors, of arrays or of processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor


class Looker(Protocol):
    """Has tensors that share the memory of others, only reads them, and notices when those have moved."""

    @property
    def views(self) -> Sequence[Tensor]:
        """The tensors with which it reads."""


_lookers = WeakSet[Looker]()


def leave_out(looker: Looker) -> None:
    """From now on the looker's views do not count as users of memory."""
    _lookers.add(looker)


def held_by(arrays: Iterable[Any]) -> list[Tensor]:
    """Return the tensors whose memory NumPy's arrays hold."""
    return [array.base for array in arrays if isinstance(array.base, Tensor)]


def is_shared(tensor: Tensor) -> bool:
    """Return whether writes to the tensor's memory show elsewhere, so that no copy may take its place.

    So it is with weights that `state_dict()` has returned and that are kept, with views in NumPy, with slices of one
    vector, and after `share_memory_()`. An array whose memory a tensor has by `torch.from_numpy` is not found.
    """
    storage = tensor.untyped_storage()
    others = _users(tensor) - _users_of_one()
    if others > 0:
        others -= Counter(view.untyped_storage()._cdata for one in _lookers for view in one.views)[storage._cdata]
    return others > 0 or storage.is_shared() or storage.nbytes() < tensor.nbytes


def _users(tensor: Tensor) -> int:
    """How many tensors have the tensor's storage, and its object in Python."""
    users: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return users


@cache
def _users_of_one() -> int:
    return _users(torch.empty(1))
