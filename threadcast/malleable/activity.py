"""Whether a process computes or waits, from its CPU time: one that waits lends its cores meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from threadcast.malleable.family import descendants, seen

State = Literal["new", "computes", "waits"]

WAITS_S = 1.0
"""Without work, before a process is taken to wait; twice as long each time that it soon worked again."""
LONGEST_WAIT_S = 30.0
COMPUTES_S = 0.5
"""Of work, before a process is taken to compute: one that starts, or only answers, gets nobody else's cores."""
WINDOW_S, WORK_S = 0.1, 0.02
"""CPU time (two of the kernel's ticks, as it is told in these) within a window, from which on a process works."""
_CHILDREN_S = 1.0


class Activity:
    """The `state` of one process, from looks at it.

    What waits and then works is "new" at once and "computes" a while later. A stopped process waits from the first
    look on.
    """

    def __init__(self) -> None:
        self.state: State = "new"
        self.stopped = False
        self._samples: list[tuple[float, float]] = []
        self._ready_before = False
        self._worked_s: float | None = None
        """When it last worked."""
        self._began_s: float | None = None
        """When it began to work without a break."""
        self._waits_since_s = 0.0
        self._patience_s = WAITS_S

    def look(self, cpu_s: float, state: str, now_s: float) -> State:
        """Take note of the CPU time that it has used in all, and of the kernel's letter for its state."""
        was_stopped, self.stopped = self.stopped, state in "Tt"
        works = not self.stopped and (self._works(cpu_s, state, now_s) or was_stopped)
        if self._worked_s is None:
            self._worked_s = now_s
        if works:
            self._worked_s = now_s
            self._began_s = now_s if self._began_s is None else self._began_s
            if self.state == "waits":
                self.state = "new"
                brief = now_s - self._waits_since_s < 2 * self._patience_s and not was_stopped
                self._patience_s = min(2 * self._patience_s, LONGEST_WAIT_S) if brief else WAITS_S
            elif now_s - self._began_s >= COMPUTES_S:
                self.state = "computes"
        elif now_s - self._worked_s > WINDOW_S:
            self._began_s = None
        if self.state != "waits" and (self.stopped or now_s - self._worked_s >= self._patience_s):
            self.state, self._waits_since_s, self._began_s = "waits", now_s, None
        return self.state

    def _works(self, cpu_s: float, state: str, now_s: float) -> bool:
        """By its CPU time of late, or because it twice could have run: others may leave it none."""
        self._samples.append((now_s, cpu_s))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            del self._samples[0]
        since_s, before_s = self._samples[0]
        ready_before, self._ready_before = self._ready_before, state == "R"
        took_s = max(now_s - since_s, WINDOW_S)
        return cpu_s - before_s >= WORK_S / WINDOW_S * took_s - 1e-9 or (ready_before and state == "R")


class Watched:
    """Looks at a process and at what it has started, but for processes that are watched themselves."""

    def __init__(self, process: int) -> None:
        self.process, self.activity = process, Activity()
        self.gone = False
        """Whether it was seen once, and is no more: something that it forked may hold its connection open."""
        self._was_seen = False
        self._used_s: dict[int, float] = {}
        self._sum_s = 0.0
        self._next_s = 0.0
        self._family: list[int] = []

    def look(self, now_s: float, others: Collection[int]) -> State:
        """Its state now; as before where it cannot be seen."""
        if now_s >= self._next_s:
            self._next_s = now_s + _CHILDREN_S
            self._family = descendants(self.process, without=others.__contains__)
        own = seen(self.process) if self.process > 0 else None
        self.gone = self._was_seen if own is None else own.state in "ZX"
        self._was_seen |= own is not None
        if own is None:
            return self.activity.state
        looks = {child: look.cpu_s for child in self._family if (look := seen(child)) is not None}
        looks[self.process] = own.cpu_s
        self._sum_s += sum(used_s - self._used_s.get(one, used_s) for one, used_s in looks.items())
        self._used_s = looks
        return self.activity.look(self._sum_s, own.state, now_s)
