"""Observes whether a registered process, together with the processes that it has started, computes or waits."""

from __future__ import annotations

from collections.abc import Collection

from threadcast.malleable.activity import Activity, ActivityState
from threadcast.malleable.family import descendants, process_status

_CHILDREN_S = 1.0
"""Seconds between searches for its descendants."""


class ProcessWatch:
    """Observes the activity of a process and its descendants, except descendants that are registered themselves."""

    def __init__(self, process: int) -> None:
        self.process, self.activity = process, Activity()
        self.gone = False
        """Whether the process has ended; its connection may still be held open by a process that it forked."""
        self._was_there = False
        self._cpu_s: dict[int, float] = {}
        """CPU time in seconds by process number, at the last observation."""
        self._total_cpu_s = 0.0
        self._next_children_s = 0.0
        self._descendants: list[int] = []

    def observe(self, now_s: float, registered: Collection[int]) -> ActivityState:
        """Return the process's state now, or its last state where /proc does not show it.

        `registered` are the numbers of all registered processes.
        """
        if now_s >= self._next_children_s:
            self._next_children_s = now_s + _CHILDREN_S
            self._descendants = descendants(self.process, without=registered.__contains__)
        own = process_status(self.process) if self.process > 0 else None
        self.gone = self._was_there if own is None else own.state in "ZX"
        self._was_there |= own is not None
        if own is None:
            return self.activity.state
        used_s = {child: status.cpu_s for child in self._descendants if (status := process_status(child)) is not None}
        used_s[self.process] = own.cpu_s
        self._total_cpu_s += sum(cpu_s - self._cpu_s.get(one, cpu_s) for one, cpu_s in used_s.items())
        self._cpu_s = used_s
        return self.activity.observe(self._total_cpu_s, own.state, now_s)
