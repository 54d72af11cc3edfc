"""Puts the search for plans off until backends were tried, where steps are so long that these are found sooner."""

from __future__ import annotations

from collections.abc import Callable

from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.best_so_far import BestSoFar
from threadcast.runtime.tuning.contender_id import DEFAULT, Kind
from threadcast.runtime.tuning.states import SearchStage
from threadcast.runtime.tuning.warm_up import WarmUp

LONG_S = 0.1
"""Seconds of a step in eager PyTorch from which backends are searched before plans, where learning may take any time:
some dozens of such steps, which looks and comparisons are, take longer than most backends take to build. A
convention."""
PAYS = 1.25
"""Ratio of eager PyTorch's time to a backend's from which no plan is searched after that. A convention."""


class PutOff:
    """Knows whether a capture waits for the search for backends, and whether its plan is still wanted after that.

    `best` is the fastest way so far; `warm_up` knows what a step takes in eager PyTorch, and what learning may cost.
    """

    def __init__(self, best: BestSoFar, warm_up: WarmUp) -> None:
        self._best, self._warm_up = best, warm_up
        self.capture: do.Capture | None = None
        """The capture that was put off; None where there is none, and once it was answered."""
        self._pays: bool | None = None
        """Whether a backend is so fast that no plan is needed beside it; None until the search for backends is over."""

    @property
    def wanted(self) -> bool:
        """Whether the capture that was put off is still to come."""
        return self.capture is not None and (self._best.id is DEFAULT or not self._pays)

    def is_for(self, backends: SearchStage, plan_first: Callable[[], bool], *, other: bool, planned: bool) -> bool:
        """Return whether to put off the next search for a plan, which could begin now.

        `plan_first`: whether one plan gains much, and sooner than a backend of this graph can be built. `other`:
        whether there is a plan, or something else that is faster than eager PyTorch; `planned`: whether a plan is.
        """
        if backends is not SearchStage.WAITS or not self._is_long:
            return False
        return planned if plan_first() else not other

    def holds(self, backends: SearchStage) -> bool:
        """Return whether a further variant, which could be captured now, comes after the search for backends."""
        return self._is_long and backends is not SearchStage.OVER

    def put_off(self, variant: Variant) -> None:
        """Capture this variant after the search for backends."""
        self.capture = do.Capture(variant)

    def answered(self, variant: Variant) -> None:
        """Take note that a variant was captured, or cannot be."""
        if self.capture is not None and self.capture.variant == variant:
            self.capture = None

    def is_over(self, backends: SearchStage) -> bool:
        """Return whether a capture was put off, and the search for backends is over or not waited for."""
        over = backends is SearchStage.OVER or (backends is SearchStage.WAITS and not self._warm_up.unlimited)
        if self.capture is None or not over:
            return False
        if self._pays is None:
            best_s, eager_s = self._best.step_s, self._warm_up.eager_s
            pays = bool(best_s and eager_s and eager_s >= PAYS * best_s)
            self._pays = pays and self._best.id.kind is Kind.BACKEND
        return True

    @property
    def _is_long(self) -> bool:
        """Whether steps are so long that the search for backends does not come last."""
        eager_s = self._warm_up.eager_s
        return self._warm_up.unlimited and eager_s is not None and eager_s >= LONG_S
