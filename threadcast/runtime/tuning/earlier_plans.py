"""The plans that one kind of call may begin with: a stored one, or one of calls of other shapes."""

from __future__ import annotations

import math

from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning.contender_id import ContenderId, plan_of
from threadcast.runtime.tuning.variant_queue import VariantQueue


class EarlierPlans:
    """A plan that an earlier process stored, and one of calls of other shapes: in `queue` while they are not slower
    than the default."""

    def __init__(self, queue: VariantQueue) -> None:
        self._queue = queue
        self.like: Variant | None = None
        """The variant of a plan of calls of other shapes, while that is compared and for as long as it runs."""
        self._stored: Variant | None = None
        """The variant of a stored plan that has become slower, while it is compared with the default."""
        self._fuse = False
        """Whether fused operators are still to be tried beside the stored plan."""

    @property
    def contenders(self) -> frozenset[ContenderId]:
        """The plans that would not be the same if they were made now."""
        return frozenset(plan_of(variant) for variant in (self.like, self._stored) if variant is not None)

    def is_like(self, contender: ContenderId) -> bool:
        """Return whether `contender` is the plan of calls of other shapes."""
        return self.like is not None and contender == plan_of(self.like)

    def compares_like(self, variant: Variant) -> None:
        """Record that a plan of calls of other shapes, for `variant`, is compared with the default."""
        self.like = variant
        self._queue.add(variant, math.inf)

    def resumes(self, *, fuse: bool) -> None:
        """Record that a stored plan runs; with `fuse` fused operators have not been tried beside it."""
        self._fuse = fuse

    def compares_stored(self, variant: Variant) -> None:
        """Record that the stored plan, for `variant`, is slower than it was, and is compared with the default."""
        self._stored = variant
        self._queue.add(variant, math.inf)

    def keep_stored(self, variant: Variant, step_s: float | None) -> None:
        """Record that the stored plan, for `variant`, goes on: only fused operators may still be tried beside it."""
        self._queue.known(variant, step_s or 0.0, fuse=self._fuse)

    def compared(self, challenger: ContenderId, best: ContenderId, best_s: float | None) -> None:
        """Record that `challenger` is compared no more, and `best` is the best, whose steps take `best_s` seconds.

        An earlier plan that has lost is dropped, so that all plans are made anew.
        """
        if self._stored is not None and challenger == plan_of(self._stored):
            if best == challenger:
                self.keep_stored(self._stored, best_s)
            else:
                self._queue.drop(self._stored)
            self._stored = None
        if self.is_like(challenger) and challenger != best:
            self.drop_like()

    def drop_like(self) -> None:
        """Forget the plan of calls of other shapes, if there is one."""
        if self.like is not None:
            self._queue.drop(self.like)
            self.like = None

    def drop(self) -> None:
        """Forget both plans."""
        self.drop_like()
        if self._stored is not None:
            self._queue.drop(self._stored)
            self._stored = None
