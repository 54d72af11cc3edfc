"""Kinds of calls that differ only in the sizes of their arguments, and have one graph for all sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Any

from torch import Tensor

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.values import LEAST, Dynamic, Place, sizes_at
from threadcast.capture.guards.one_capture import NoTurn
from threadcast.core.errors import CaptureError
from threadcast.runtime.calls.kinds import CallKind, read_as
from threadcast.runtime.watching.constants import exact

SEVERAL = 3
"""Kinds of calls that differ only in sizes, from which on a graph for all their sizes is captured."""
FAR = 4.0
"""Ratio of two sizes from which on they are of different kinds, each with a comparison of its own. A convention."""
NEAR = 1.25
"""Ratio of two sizes up to which the times of calls are compared while it is being learned what runs fastest."""
ELSEWHERE = 10
"""Calls in a row with sizes that are not near, after which learning goes on with these."""
OFTEN = 100
"""Calls of exactly the same sizes after which these get a graph of their own, which fused operators and backends can
run."""
_MOST = 1_000
"""Most kinds of calls of a family that are remembered, and most families."""
_MOST_SETTINGS = 4
"""Most settings of model and optimizer, such as train and eval mode, for which calls alike have families."""
_numbers = count()


class SizeFamily:
    """Calls with the same arguments but for the sizes `dynamic`, and the graph that is right for all of these.

    Calls whose sizes differ by less than `FAR` are of one kind. What runs them fastest is learned in calls whose sizes
    are `near` those of the call before.
    """

    def __init__(self, kind: CallKind, dynamic: Dynamic) -> None:
        self.dynamic = dynamic
        self._number, self._kind = next(_numbers), kind
        self._places: list[Place] = [(leaf, dim) for leaf, dims in dynamic.items() for dim in dims or (None,)]
        self._captured: Captured | None = None
        self._anchors: dict[CallKind, tuple[list[int], int]] = {}
        """For each kind the sizes near which is learned, and the number of calls since that were not near."""
        self.failed: str | None = None
        """Why there is no graph for all sizes; None where there may be one."""

    @property
    def is_captured(self) -> bool:
        """Whether the graph is there."""
        return self._captured is not None

    def captured(self, capture: Callable[[Dynamic], Captured]) -> Captured:
        """Return the graph, which `capture` makes the first time; CaptureError where it cannot."""
        if self._captured is None:
            try:
                self._captured = capture(self.dynamic)
            except NoTurn:
                raise
            except CaptureError as error:
                self.failed = str(error)
                raise
        return self._captured

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Return whether the graph is right for these leaves of arguments."""
        sizes = None if self._captured is None else self._captured.sizes
        if sizes is None:
            return min(sizes_at(self._places, leaves)) >= LEAST
        return bool(sizes.fits(*sizes.of(leaves)))

    def kind_of(self, leaves: Sequence[Any]) -> CallKind:
        """Return the kind of a call: one for all calls whose sizes are not far from each other."""
        about = tuple(map(size_about, sizes_at(self._places, leaves)))
        return self._kind._replace(arguments=("sizes about", self._number, about))

    def about(self, leaves: Sequence[Any], weights: Iterable[Tensor] = ()) -> str:
        """Return a text of the sizes of a call and of its weights, the same in each process.

        Of those that vary it tells about how large they are.
        """
        varying = [(*place, size_about(*sizes_at([place], leaves))) for place in self._places]
        others = [
            [size for dim, size in enumerate(_sizes(leaf)) if dim not in self.dynamic.get(number, ())]
            for number, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor)
        ]
        return f"sizes about {varying}, {others}, {[tuple(one.shape) for one in weights]}"

    def near(self, kind: CallKind, leaves: Sequence[Any]) -> bool:
        """Return whether times of this call can be compared with those of the call of this kind that was near before.

        After `ELSEWHERE` calls that were not, these sizes take the place.
        """
        sizes = sizes_at(self._places, leaves)
        anchor, elsewhere = self._anchors.get(kind, (sizes, 0))
        near = all(max(one, other) <= NEAR * min(one, other) for one, other in zip(sizes, anchor, strict=True))
        if near or elsewhere >= ELSEWHERE:
            self._anchors[kind] = sizes, 0
            return True
        self._anchors[kind] = anchor, elsewhere + 1
        return False


class SizeFamilies:
    """Finds the families among the kinds of calls that come."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[_Group]] = {}
        """By what their calls have in common, the least recently used first; in each list one for each settings."""

    def of(self, kind: CallKind, leaves: Sequence[Any]) -> SizeFamily | None:
        """Return the family of a call of this kind, which has no graph of its own; None where there is none.

        There is none for the first kinds that differ in sizes, and for a kind that comes often.
        """
        key = tuple(map(_described, leaves)), kind.arguments[-1], kind.overlaps, kind[3:]  # type: ignore[index]
        groups = self._groups[key] = self._groups.pop(key, [])
        group = next((group for group in groups if group.settings == kind.settings), None)
        if group is not None:
            return group.of(kind, leaves)
        groups.append(_Group(kind, leaves))
        del groups[:-_MOST_SETTINGS]
        if len(self._groups) > _MOST:
            del self._groups[next(iter(self._groups))]
        return None

    def clear(self) -> None:
        """Forget all."""
        self._groups.clear()


class _Group:
    """Kinds of calls with tensors of the same number of dimensions, and all else equal."""

    def __init__(self, kind: CallKind, leaves: Sequence[Any]) -> None:
        self.settings = kind.settings
        self._first = [_sizes(leaf) for leaf in leaves]
        self._calls: Counter[Hashable] = Counter({kind.arguments: 1})
        self._dynamic: dict[int, tuple[int, ...]] = {}
        self._family: SizeFamily | None = None

    def of(self, kind: CallKind, leaves: Sequence[Any]) -> SizeFamily | None:
        if kind.arguments in self._calls or len(self._calls) < _MOST:
            self._calls[kind.arguments] += 1
        if len(self._calls) < SEVERAL or self._calls[kind.arguments] > OFTEN:
            return None
        if self._vary(leaves) or self._family is None:
            self._family = SizeFamily(kind, dict(self._dynamic))
        family = self._family
        return family if family.failed is None and self._dynamic and family.fits(leaves) else None

    def _vary(self, leaves: Sequence[Any]) -> bool:
        """Add the sizes in which these leaves differ from the first; return whether there are new ones."""
        found = False
        for number, (first, leaf) in enumerate(zip(self._first, leaves, strict=True)):
            sizes = _sizes(leaf)
            if sizes == first:
                continue
            known = self._dynamic.get(number)
            if not isinstance(leaf, Tensor):
                self._dynamic[number] = ()
                found |= known is None
                continue
            differing = {dim for dim, (one, other) in enumerate(zip(first, sizes, strict=True)) if one != other}
            if known is None or not differing <= set(known):
                self._dynamic[number] = tuple(sorted(differing | set(known or ())))
                found = True
        return found


def size_about(size: int) -> int:
    """Return a number that is the same of sizes which are not far from each other."""
    return int(math.log(size) / math.log(FAR))


def _sizes(leaf: Any) -> Sequence[int]:
    """The sizes of a leaf: a tensor's shape, an integer itself, nothing of anything else."""
    if isinstance(leaf, Tensor):
        return leaf.shape
    return (leaf,) if type(leaf) is int else ()


def _described(leaf: Any) -> Hashable:
    """What of a leaf is equal in all calls of a family."""
    if isinstance(leaf, Tensor):
        layout = _order(leaf) if leaf.is_contiguous() else (leaf.shape, leaf.stride())
        return leaf.dim(), leaf.dtype, leaf.device, layout, read_as(leaf)
    return int if type(leaf) is int else exact(leaf)


def _order(leaf: Tensor) -> Hashable:
    """What tells images that are contiguous and in channels last, as those of one channel may be, from others.

    Convolutions give results in the order of their image, and a graph has views that fit one order only.
    """
    sides = zip(leaf.shape, leaf.stride(), strict=True)
    return tuple([stride == 1 for size, stride in sides if size == 1]) if leaf.dim() > 3 else None
