"""Observes whether a registered process, together with the processes that it has started, computes or waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from threadcast.malleable.activity import Activity, ActivityState
from threadcast.malleable.family import Family, process_status
from threadcast.malleable.family_masks import is_keeper
from threadcast.malleable.inherited_limit import mark_of

_FAMILY_S = 1.0
"""Seconds between searches for its family."""


class ProcessWatch:
    """Observes the activity of a process and its family, except those that are registered themselves."""

    def __init__(self, process: int) -> None:
        self.process, self.activity = process, Activity()
        self.gone = False
        """Whether the process has ended; its connection may still be held open by a process that it forked."""
        self.cpu_s = 0.0
        """CPU time in seconds that they have used since the first observation."""
        self._was_there = False
        self._family = Family(process, mark_of(process))
        self._next_family_s = 0.0
        self._members: Iterable[int] = ()
        self._used_s: float | None = None

    def observe(self, now_s: float, registered: Collection[int]) -> ActivityState:
        """Return the process's state now, or its last state where /proc does not show it.

        `registered` are the numbers of all registered processes.
        """
        own = process_status(self.process) if self.process > 0 else None
        self.gone = self._was_there if own is None else own.state in "ZX"
        self._was_there |= own is not None
        if own is None:
            return self.activity.state
        if now_s >= self._next_family_s:
            self._next_family_s = now_s + _FAMILY_S
            others = {*registered} - {self.process}
            self._members = self._family.look(without=lambda one: one in others or is_keeper(one))
        found = (status for one in self._members if (status := process_status(one)) is not None)
        used_s = sum(status.cpu_s for status in found)
        if self._used_s is not None:  # less where one has ended that nobody waited for
            self.cpu_s += max(used_s - self._used_s, 0.0)
        self._used_s = used_s
        return self.activity.observe(self.cpu_s, own.state, now_s)
