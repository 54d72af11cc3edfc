"""The fastest contender so far, how long its steps take, and what runs next best."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from statistics import median

from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind, plan_of
from threadcast.runtime.tuning.warm_up import WarmUp

_RECENT = 15


class BestSoFar:
    """The fastest contender that is known, which is the default at first. `warm_up` knows how long that takes."""

    def __init__(self, warm_up: WarmUp) -> None:
        self._warm_up = warm_up
        self.id = DEFAULT
        self._before = DEFAULT
        """The best contender before this one won."""
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        """Seconds of recent steps, where it is not the default."""

    def become(self, contender: ContenderId, step_s: float | None = None) -> None:
        """Record that `contender` is the best from now on; its steps take `step_s` seconds where that is known."""
        if contender != self.id:
            self._recent_s.clear()
        self.id = contender
        if step_s is not None:
            self._recent_s.append(step_s)

    def loses_to(self, contender: ContenderId, step_s: float) -> None:
        """Record that `contender` has won a comparison with the best, or that it is the best and has won once more."""
        if contender != self.id:
            self._before = self.id
        self.become(contender, step_s)

    def ran(self, seconds: float) -> None:
        """Record a step by the best, which is not the default."""
        self._recent_s.append(seconds)

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None where they are not known."""
        if self.id is DEFAULT:
            return self._warm_up.eager_s
        return median(self._recent_s) if self._recent_s else None

    def second(self, planned: Sequence[Variant], refused: Collection[ContenderId]) -> ContenderId:
        """Return the next best contender that can be opened: what was the best before, or instead of a backend, which
        is closed, the fastest plan. `planned` are the variants that have a plan, the fastest first."""
        plans = [one for one in map(plan_of, planned) if one != self.id]
        if self._before in plans or (self._before.kind is Kind.EAGER and self._before not in refused):
            return self._before
        return plans[0] if plans and self._before.kind is Kind.BACKEND else DEFAULT
