"""Calls that run as given without a closer look, because those before them did and they look alike at a glance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.tuner.tuning import LOOKING_SHARE

CALLS, SHORT_CALLS = 20, 500
"""Fewest calls that are not looked at, after one that PyTorch runs fastest, and after one too short to gain: looking
takes 0.02 to 0.1 ms, in which caches cool down too, and 1 ms without the native library. They are in no report; those
too short to gain are not counted as steps."""


class CallsLeftAlone:
    """Tells which of the next calls need no closer look: the next few that look like the one before at a glance.

    `arguments` are those of a call, or a tuple of its positional arguments and a dict of its named ones.
    """

    def __init__(self) -> None:
        self.short = False
        """Whether they are too short to gain anything."""
        self.rest = 0
        """Number of calls that are left alone without a glance: no other kind of calls is learned."""
        self._same: Fallback | None = None
        """Why the last of them were."""
        self._rests = 0
        """Number of calls in the last rest of those."""
        self.left = 0
        """Number of next calls that are left alone if they look alike."""
        self._glance: Callable[[tuple[Any, ...]], object] = _shapes
        self._alike: object = None

    def has(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a call is one of them."""
        return self.left > 0 and self._glance(arguments) == self._alike

    def count(self) -> None:
        """Count a call that was one of them."""
        self.left -= 1

    def after(
        self, arguments: tuple[Any, ...], *, short: bool = False, varies: bool = False, looking: float = 0.0
    ) -> None:
        """Leave the next calls with the same shapes alone, after one that PyTorch runs fastest, or that was too short.

        Where the sizes of calls vary, those with the same numbers of dimensions are. `looking` is how many times as
        long as a call a look takes: so many calls are left alone that looks take little of their time.
        """
        self._glance = _dimensions if varies else _shapes
        calls = SHORT_CALLS if short else max(CALLS, math.ceil(min(SHORT_CALLS, looking / LOOKING_SHARE)))
        self.left, self._alike, self.short = calls, self._glance(arguments), short

    def for_changes(self, calls: int) -> None:
        """Leave so many next calls alone, whatever their arguments, as something that they read changes too often."""
        self.rest, self._same = calls, None

    def after_same(self, fallback: Fallback) -> None:
        """Leave the next calls alone, whatever their arguments; twice as many as before where that was for this reason.

        So looks cost less and less, and one that comes too late has kept a plan from as many calls as before at most.
        Other arguments may bring another reason, hooks stay: those have a limit.
        """
        self._rests = 2 * self._rests if fallback == self._same else CALLS
        if not fallback.hooks:
            self._rests = min(self._rests, SHORT_CALLS)
        self.rest, self._same = self._rests, fallback


def _shapes(arguments: tuple[Any, ...]) -> tuple[object, list[object], list[str]]:
    """What tells calls of other shapes apart at a glance: number, names and shapes of the arguments."""
    positional, named = arguments[:2] if isinstance(arguments[0], tuple) else (arguments, {})
    values = (*positional, *named.values()) if named else positional
    shapes: list[object] = [
        value.shape if isinstance(value, Tensor) and not value.is_nested else type(value) for value in values
    ]
    return torch.is_autocast_enabled("cpu"), shapes, list(named)


def _dimensions(arguments: tuple[Any, ...]) -> object:
    """What tells calls whose sizes vary apart at a glance: number, names and numbers of dimensions of the arguments."""
    autocast, shapes, named = _shapes(arguments)
    return autocast, [len(one) if isinstance(one, tuple) else one for one in shapes], named
