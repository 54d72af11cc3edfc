"""Which kinds of calls of one graph run in channels last: those whose results are seen to be eager's."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from torch.fx import GraphModule

from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.table import MOST_KINDS
from threadcast.runtime.check.functional import FunctionalShadow
from threadcast.runtime.check.shadow import checked_step
from threadcast.runtime.layout.graph_layout import ChannelsLast, channels_last_backward

_UNTOLD = 8
"""Calls whose results show nothing, such as gradients that are zero, after which channels last is not used. A
convention."""

_logger = logging.getLogger("threadcast")


class KindsInChannelsLast:
    """The kinds of calls of `graph` that run in channels last, by what runs them.

    `forward` runs a forward pass in channels last; None where it has no such form. A `backward` pass follows: it runs
    so where what was saved for it lies in another order than when it was traced. The first calls of a kind run in the
    order as given, too, until their results show whether those in channels last are the same.
    """

    def __init__(self, graph: GraphModule, forward: ChannelsLast | None, *, backward: bool, title: str) -> None:
        self._graph, self._backward, self._title = graph, backward, title
        self.forward = forward
        self._runs: dict[CallKind, ChannelsLast] = {}
        self._untold: Counter[CallKind] = Counter()
        """How many calls of a kind showed nothing of whether channels last is right."""
        self._refused: set[CallKind] = set()
        """Those of these kinds, of a backward pass, that run in the order as given, as the results are not eager's."""

    def __contains__(self, kind: CallKind) -> bool:
        return kind in self._runs

    def __bool__(self) -> bool:
        return bool(self._runs)

    def get(self, kind: CallKind) -> ChannelsLast | None:
        """What runs calls of this kind; None where they do not run in channels last."""
        return self._runs.get(kind)

    def refuses(self, kind: CallKind) -> bool:
        """Whether a kind of calls of a backward pass is computed in the order as given, whatever it comes in."""
        return kind in self._refused

    def plainly(self, kind: CallKind) -> Callable[..., Any] | None:
        """How PyTorch runs calls of this kind; None where they do not run in channels last."""
        layout = self._runs.get(kind)
        return layout.as_given if layout is not None and kind in self._refused else layout

    def arriving(self, arguments: tuple[Any, ...]) -> ChannelsLast | None:
        """What runs a backward pass whose saved tensors lie in another order than they were traced in; else None."""
        return channels_last_backward(self._graph, arguments) if self._backward else None

    def knows(self, kind: CallKind, layout: ChannelsLast | None, arguments: tuple[Any, ...]) -> bool:
        """Note what runs a kind of calls in channels last: `layout`, or in a backward pass what its inputs ask for.

        Returns False where this call is to run in the order as given: its results are constant or not finite, and
        show nothing, or `layout` is given up, because its results are not those of the order as given.
        """
        if kind in self._runs:
            return True
        wanted = self.arriving(arguments) or layout
        if wanted is None:
            return True
        given = wanted.as_given(*arguments)
        if layout is not None and not wanted.arranges(given):
            self.forward = None
            return False
        if not wanted.tells(given):
            self._untold[kind] += 1
            if self._untold[kind] < _UNTOLD:
                return False
            reason: str | None = f"results of {_UNTOLD} calls were constant or not finite, and showed nothing"
        else:
            reason = _why_not(wanted, arguments)
        if reason is None or layout is None:
            self._runs[kind] = wanted
        if reason is not None:
            _logger.warning("%s: channels last is not used: %s", self._title, reason)
            if layout is not None:
                self.forward = None
                return False
            self._refused.add(kind)
        return True

    def keep(self, kinds: Collection[CallKind]) -> None:
        """Where many kinds are noted, forget all but these: others are seen anew when they come again."""
        if max(len(self._runs), len(self._untold)) > MOST_KINDS:
            self._runs = {kind: self._runs[kind] for kind in kinds if kind in self._runs}
            self._refused.intersection_update(self._runs)
            self._untold.clear()

    def forget(self) -> None:
        """Forget all kinds; a later call is compared anew."""
        self._runs.clear()
        self._refused.clear()
        self._untold.clear()


def _why_not(layout: ChannelsLast, arguments: tuple[Any, ...]) -> str | None:
    """Why a call may not run in channels last; None where its results are those of the order as given."""
    shadow = FunctionalShadow(layout.as_given)
    reason = shadow.too_large(arguments, None)
    if reason is not None:
        return reason
    difference = checked_step(shadow, layout, arguments, None, in_order=layout).difference
    return None if difference is None else str(difference)
