"""Which calls PyTorch's default runs, and why."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from threadcast.runtime.tuner.report import Report


@dataclass(frozen=True, slots=True)
class Fallback:
    """PyTorch's default runs calls with these arguments. `reason` tells a user why.

    `short`: they are too short. `hooks`: there are hooks, which most programs keep.
    """

    reason: str
    short: bool = False
    hooks: bool = False

    @property
    def report(self) -> Report:
        """What a user is told of these calls."""
        return Report.as_default(self.reason)


class Told:
    """Warns that `what` runs as PyTorch does, once for each reason: calls and graphs are many."""

    _MOST = 1_000

    def __init__(self, what: str = "this") -> None:
        self._what = f"threadcast runs {what} as PyTorch does"
        self._reasons: set[str] = set()

    def tell(self, reason: str, what: str | None = None) -> None:
        """Warn of a reason that no warning has given yet; `what` comes of it, if not that PyTorch runs a call."""
        if reason not in self._reasons:
            if len(self._reasons) >= self._MOST:
                self._reasons.clear()
            self._reasons.add(reason)
            warnings.warn(f"{what or self._what}: {reason}", stacklevel=4)


BREAKS = '; torch.compile(model, backend="threadcast") runs the parts of it that it can'
"""The end of a reason why a call is left to PyTorch, where a graph of some of it could run otherwise."""
FORKED = "it was called in another process, of which this one is a fork without its threads"
ONCE = "kinds of calls that came once: each has other shapes, types or numbers, or settings of model or optimizer"
WITHIN = "it is called within another optimised call, which runs it"


class UpdateApart(Exception):
    """Raised before a training step begins: the optimizer's own `step` must run, after a graph of the gradients."""


class FirstCall:
    """PyTorch's default runs this one call; whether such calls can be captured is known only after it."""


FIRST_CALL = FirstCall()
