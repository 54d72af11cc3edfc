"""Which calls PyTorch's default runs, and why."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fallback:
    """PyTorch's default runs calls with these arguments. `reason` tells a user why.

    `short`: they are too short. `hooks`: there are hooks, which most programs keep.
    """

    reason: str
    short: bool = False
    hooks: bool = False


class Told:
    """Warns of graphs of `torch.compile` that run as PyTorch does, once for each reason: a program has many graphs."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def tell(self, reason: str) -> None:
        """Warn of a reason that no warning has given yet."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            warnings.warn(f"threadcast runs a graph as PyTorch does: {reason}", stacklevel=3)


BREAKS = '; torch.compile(model, backend="threadcast") runs the parts of it that it can'
"""The end of a reason why a call is left to PyTorch, where a graph of some of it could run otherwise."""
FORKED = "it was called in another process, of which this one is a fork without its threads"
WITHIN = "it is called within another optimised call, which runs it"


class UpdateApart(Exception):
    """Raised before a training step begins: the optimizer's own `step` must run, after a graph of the gradients."""


class FirstCall:
    """PyTorch's default runs this one call; whether such calls can be captured is known only after it."""


FIRST_CALL = FirstCall()
