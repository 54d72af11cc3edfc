"""The order in which the variants of a call's graph are searched for a plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from threadcast.runtime.plans.variant import MemoryFormat, Variant


class VariantQueue:
    """The variants to search, and the seconds that a step takes by the best plan of each that was searched.

    First come the variants of all `formats`, in this order. With `fuse` the fastest of them may follow with fused
    operators (`fused`).
    """

    def __init__(self, formats: Sequence[MemoryFormat], *, fuse: bool) -> None:
        self._waiting, self._fuse = deque(map(Variant, formats)), fuse
        self._step_s: dict[Variant, float] = {}
        self.searched = False
        """Whether a plan was made for any variant."""

    @property
    def planned(self) -> tuple[Variant, ...]:
        """The variants that have a plan, the fastest first."""
        return tuple(sorted(self._step_s, key=self._step_s.__getitem__))

    def next(self) -> Variant | None:
        """Return the next variant to search; None where those of all formats were searched."""
        return self._waiting.popleft() if self._waiting else None

    def fused(self) -> Variant | None:
        """Return the fastest variant with fused operators; None where it was searched, or is not to be."""
        if not (self._fuse and self._step_s):
            return None
        return Variant(self.planned[0].memory_format, fused=True)

    def no_fused(self) -> None:
        """Search no variant with fused operators from here on: it was searched, or there is nothing to fuse."""
        self._fuse = False

    def add(self, variant: Variant, step_s: float) -> None:
        """Record that `variant` has a plan, whose steps take `step_s` seconds."""
        self._step_s[variant] = step_s
        self.searched = True

    def seconds(self, variant: Variant) -> float | None:
        """Return the seconds of a step by the plan of `variant`; None where it has no plan."""
        return self._step_s.get(variant)

    def known(self, variant: Variant, step_s: float, *, fuse: bool) -> None:
        """Record that `variant` has the best plan of all formats; with `fuse`, fused operators may be tried."""
        self.add(variant, step_s)
        self._waiting.clear()
        self._fuse = self._fuse and fuse and not variant.fused

    def drop(self, variant: Variant) -> None:
        """Forget the plan of `variant`, if it has one."""
        self._step_s.pop(variant, None)
