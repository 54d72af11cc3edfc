"""Whether a tensor's memory is also that of other tensors, of arrays or of processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from threading import Lock
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
_lookers_lock = Lock()


def leave_out(looker: Looker) -> None:
    """From now on the looker's views do not count as users of memory."""
    with _lookers_lock:
        _lookers.add(looker)


def _all_lookers() -> list[Looker]:
    with _lookers_lock:
        return list(_lookers)


def held_by(arrays: Iterable[Any]) -> list[Tensor]:
    """Return the tensors whose memory NumPy's arrays hold."""
    return [array.base for array in arrays if isinstance(array.base, Tensor)]


def any_shared(tensors: Iterable[Tensor]) -> bool:
    """Return whether writes to the memory of one of the tensors show elsewhere, so that no copy may take its place.

    So it is with weights that `state_dict()` has returned and that are kept, with views in NumPy, with slices of one
    vector, and after `share_memory_()`. An array whose memory a tensor has by `torch.from_numpy` is not found.
    """
    only_read: Counter[int] | None = None
    for tensor in tensors:
        storage = tensor.untyped_storage()
        others = _users(tensor) - _users_of_one()
        if others > 0:
            if only_read is None:
                only_read = Counter(view.untyped_storage()._cdata for one in _all_lookers() for view in one.views)
            others -= only_read[storage._cdata]
        if others > 0 or storage.is_shared() or storage.nbytes() < tensor.nbytes:
            return True
    return False


def _users(tensor: Tensor) -> int:
    """How many tensors have the tensor's storage, and its object in Python."""
    users: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return users


@cache
def _users_of_one() -> int:
    return _users(torch.empty(1))
