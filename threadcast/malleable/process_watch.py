"""Observes whether a registered process, together with the processes that it has started, computes or waits."""

from __future__ import annotations

from collections.abc import Collection

from threadcast.malleable.activity import Activity, ActivityState
from threadcast.malleable.family import Family, process_status, thread_times
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
        self.demand: float | None = None
        """How many threads ran or waited for a CPU in the last second, on average; None where that is not known."""
        self._times_s: dict[int, float] = {}
        """By thread, how long it has run and waited in all."""
        self.was_there = False
        """Whether /proc has shown the process."""
        self._family = Family(process, mark_of(process))
        self._next_family_s = 0.0
        self._members: Collection[int] = ()
        self._used_s: float | None = None

    def observe(self, now_s: float, registered: Collection[int]) -> ActivityState:
        """Return the process's state now, or its last state where /proc does not show it.

        `registered` are the numbers of all registered processes.
        """
        own = process_status(self.process) if self.process > 0 else None
        self.gone = self.was_there if own is None else own.state in "ZX"
        self.was_there |= own is not None
        if own is None:
            return self.activity.state
        if now_s >= self._next_family_s:
            since_s, self._next_family_s = self._next_family_s - _FAMILY_S, now_s + _FAMILY_S
            others = {*registered} - {self.process}
            self._members = self._family.look(without=lambda one: one in others or is_keeper(one))
            self._count_threads(now_s - since_s)
        found = (status for one in self._members if (status := process_status(one)) is not None)
        used_s = sum(status.cpu_s for status in found)
        if self._used_s is not None:  # less where one has ended that nobody waited for
            self.cpu_s += max(used_s - self._used_s, 0.0)
        self._used_s = used_s
        return self.activity.observe(self.cpu_s, own.state, now_s)

    def _count_threads(self, elapsed_s: float) -> None:
        times = {thread: sum(pair) for one in self._members for thread, pair in thread_times(one).items()}
        if self._times_s and elapsed_s > 0:
            self.demand = sum(time_s - self._times_s.get(one, time_s) for one, time_s in times.items()) / elapsed_s
        self._times_s = times

    @property
    def members(self) -> Collection[int]:
        """The numbers of all that were found, at most a second ago."""
        return self._members
