"""What learning may cost where several graphs are parts of one program."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from threadcast.runtime.tuning.warm_up import START_S, WarmUp

_all: WeakSet[SharedWarmUp] = WeakSet()


class SharedWarmUp(WarmUp):
    """A `WarmUp` whose limit holds for all that there are in this process together.

    A program of fifty graphs may not lose fifty times what one graph may: all of them lose at most `START_S` at once,
    and the share `share` of the time that all of them took.
    """

    def __init__(self, share: float = 1.0, *, eager_s: Sequence[float] = ()) -> None:
        super().__init__(share, eager_s=eager_s)
        _all.add(self)

    def allows(self, extra_s: float) -> bool:
        """Return whether learning may lose `extra_s` more seconds now, beside the capture of each graph."""
        if self.share >= 1:
            return True
        lost_s = sum(one.lost_s - (one._captured_s or 0.0) for one in _all)
        return lost_s + extra_s <= max(START_S, self.share * sum(one.seconds for one in _all))
