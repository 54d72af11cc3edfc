"""How the results of a module lie in memory: their strides, and which share memory with one another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.program_file import in_memory_order
from threadcast.runtime.plans.strides import laid_out, overlaps_itself

_View = tuple[int, torch.Size, tuple[int, ...], int]
"""The number of another result, and size, strides and offset of a view of it, in elements."""


class ResultMemory:
    """What `results`, those of one call, have in common with those of every call of the kind.

    CaptureError where elements are shared in a way that is not known: by results none of which has all elements of the
    others, or within a result by anything but `expand`.
    """

    def __init__(self, results: Sequence[Tensor]) -> None:
        first: dict[int, int] = {}
        self._same = [first.setdefault(id(one), at) for at, one in enumerate(results)]
        """For each result the number of the first that is the same tensor."""
        self._strides = [one.stride() for one in results]
        self._views = self._found_views([(at, results[at]) for at in dict.fromkeys(self._same)])
        """Results that are views of others, by number."""
        self._plain = not self._views and len(first) == len(results)
        self.shares = len({one.untyped_storage()._cdata for one in results}) < len(first)
        """Whether different results have a storage in common."""
        if any(map(overlaps_itself, results)):
            raise CaptureError("elements of a result of the module share memory")

    def is_like(self, other: ResultMemory) -> bool:
        """Whether the same results are one tensor, or views of the same others."""
        return (self._same, self._views) == (other._same, other._views)

    def laid_out(self, found: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return results that a backend computed as tensors that lie as the module's do."""
        if self._plain and list(map(Tensor.stride, found)) == self._strides:
            return found
        own = [
            one if at in self._views or self._same[at] != at else laid_out(one, strides)
            for at, (one, strides) in enumerate(zip(found, self._strides, strict=True))
        ]
        for at, (base, size, strides, offset) in self._views.items():
            own[at] = own[base].as_strided(size, strides, own[base].storage_offset() + offset)
        return [own[at] for at in self._same]

    def _found_views(self, results: Sequence[tuple[int, Tensor]]) -> dict[int, _View]:
        views: dict[int, _View] = {}
        by_storage: dict[int, list[tuple[int, Tensor]]] = {}
        for at, one in results:
            by_storage.setdefault(one.untyped_storage()._cdata, []).append((at, one))
        for together in by_storage.values():
            if len(together) > 1 and _overlap([one for _, one in together]):
                base_at, base = max(together, key=lambda pair: pair[1].numel())
                if not in_memory_order(base).is_contiguous():
                    raise CaptureError("results of the module share memory in a way that backends cannot follow")
                for at, one in together:
                    if at != base_at:
                        views[at] = (
                            base_at,
                            one.size(),
                            one.stride(),
                            int(one.storage_offset() - base.storage_offset()),
                        )
                        _check_within(one, base)
        return views


def _overlap(results: Sequence[Tensor]) -> bool:
    """Whether tensors of one storage have elements in common."""
    if len({one.dtype for one in results}) > 1:
        return True
    used = torch.zeros(results[0].untyped_storage().nbytes() // results[0].element_size(), dtype=torch.bool)
    for one in results:
        own = used.as_strided(one.size(), one.stride(), one.storage_offset())
        if bool(own.any()):
            return True
        own.fill_(True)
    return False


def _check_within(view: Tensor, base: Tensor) -> None:
    """Raise CaptureError unless all elements of `view` are `base`'s."""
    begin = view.storage_offset() - base.storage_offset()
    end = begin + 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    if view.dtype is not base.dtype or (view.numel() and not 0 <= begin <= end <= base.numel()):
        raise CaptureError("results of the module share memory in a way that backends cannot follow")
