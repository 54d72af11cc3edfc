"""Decides by a process's CPU time whether it computes or waits; a process that waits lends its cores to others."""

from __future__ import annotations

from typing import Literal

ActivityState = Literal["new", "computes", "waits"]
"""A process is "new" until it has worked for `COMPUTES_S`, counted from its start or from when it last waited."""

WAITS_S = 1.0
"""Seconds without work after which a process counts as waiting; doubled each time that it soon worked again."""
LONGEST_WAIT_S = 30.0
"""Limit of this doubling, in seconds."""
COMPUTES_S = 0.5
"""Seconds of work after which a process counts as computing: one that only starts, or answers a request, does not."""
WINDOW_S, WORK_S = 0.1, 0.02
"""A process works if it uses `WORK_S` seconds of CPU time (two of the kernel's ticks) in a window of `WINDOW_S`."""


class Activity:
    """Derives the `state` of one process from regular observations.

    A waiting process that works again is "new" at once, and "computes" a while later. A stopped process (SIGSTOP) waits
    from the first observation on.
    """

    def __init__(self) -> None:
        self.state: ActivityState = "new"
        self.stopped = False
        self._samples: list[tuple[float, float]] = []
        """(time, CPU time) of the last observations, both in seconds."""
        self._was_runnable = False
        self._last_work_s: float | None = None
        self._work_since_s: float | None = None
        """Time in seconds since which the process has worked without a break."""
        self._waits_since_s = 0.0
        self._patience_s = WAITS_S

    def observe(self, cpu_s: float, kernel_state: str, now_s: float) -> ActivityState:
        """Return the state after an observation at `now_s`.

        `cpu_s` is the CPU time in seconds that the process has used in all, `kernel_state` the kernel's letter for its
        state (proc_pid_stat(5)).
        """
        was_stopped, self.stopped = self.stopped, kernel_state in "Tt"
        works = not self.stopped and (self._works(cpu_s, kernel_state, now_s) or was_stopped)
        if self._last_work_s is None:
            self._last_work_s = now_s
        if works:
            self._last_work_s = now_s
            self._work_since_s = now_s if self._work_since_s is None else self._work_since_s
            if self.state == "waits":
                self.state = "new"
                brief = now_s - self._waits_since_s < 2 * self._patience_s and not was_stopped
                self._patience_s = min(2 * self._patience_s, LONGEST_WAIT_S) if brief else WAITS_S
            elif now_s - self._work_since_s >= COMPUTES_S:
                self.state = "computes"
        elif now_s - self._last_work_s > WINDOW_S:
            self._work_since_s = None
        if self.state != "waits" and (self.stopped or now_s - self._last_work_s >= self._patience_s):
            self.state, self._waits_since_s, self._work_since_s = "waits", now_s, None
        return self.state

    def _works(self, cpu_s: float, kernel_state: str, now_s: float) -> bool:
        """Whether it used CPU time recently, or was runnable twice in a row: others may have left it no CPU time."""
        self._samples.append((now_s, cpu_s))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            del self._samples[0]
        since_s, cpu_before_s = self._samples[0]
        was_runnable, self._was_runnable = self._was_runnable, kernel_state == "R"
        elapsed_s = max(now_s - since_s, WINDOW_S)
        return cpu_s - cpu_before_s >= WORK_S / WINDOW_S * elapsed_s - 1e-9 or (was_runnable and kernel_state == "R")
