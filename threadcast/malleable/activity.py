"""Whether a process computes or waits, judged by its CPU time: one that waits lends its cores meanwhile."""

from __future__ import annotations

from typing import Literal

ActivityState = Literal["new", "computes", "waits"]
"""A process is "new" as long as it has not worked for long enough, since it came or since it last waited."""

WAITS_S = 1.0
"""Without work, before a process is taken to wait; twice as long each time that it soon worked again."""
LONGEST_WAIT_S = 30.0
COMPUTES_S = 0.5
"""Of work, before a process is taken to compute: one that starts, or only answers, gets nobody else's cores."""
WINDOW_S, WORK_S = 0.1, 0.02
"""A process works if it uses so much CPU time in such a window: two ticks, the unit in which the kernel counts it."""


class Activity:
    """The `state` of one process, from regular observations.

    A process that waits and then works is "new" at once and "computes" a while later. A stopped process (SIGSTOP) waits
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
        """When it began to work without a break."""
        self._waits_since_s = 0.0
        self._patience_s = WAITS_S

    def observe(self, cpu_s: float, kernel_state: str, now_s: float) -> ActivityState:
        """Note the CPU time that it has used in all, and the kernel's letter for its state (proc_pid_stat(5))."""
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
        """Whether it used CPU time of late, or was runnable twice in a row: others may have left it no time."""
        self._samples.append((now_s, cpu_s))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            del self._samples[0]
        since_s, cpu_before_s = self._samples[0]
        was_runnable, self._was_runnable = self._was_runnable, kernel_state == "R"
        elapsed_s = max(now_s - since_s, WINDOW_S)
        return cpu_s - cpu_before_s >= WORK_S / WINDOW_S * elapsed_s - 1e-9 or (was_runnable and kernel_state == "R")
