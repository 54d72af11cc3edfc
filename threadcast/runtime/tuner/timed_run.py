"""When a step began, and how long it took."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from threadcast.core.errors import in_one_line
from threadcast.runtime.plans.curves_in_step import WARM_UP
from threadcast.runtime.tuner.contender import Run


class TimedRun:
    """Runs a step, once or several times, and records when it began and how many seconds each run took."""

    def __init__(self, run: Run, clock: Callable[[], float]) -> None:
        self._run, self._clock = run, clock
        self.started_s = 0.0
        """When the last run began."""
        self.runs_s: list[float] = []
        """Seconds of each run."""
        self.raised: str | None = None
        """What a run raised, in words."""

    def __call__(self, *arguments: Any) -> Any:
        self.started_s = self._clock()
        try:
            result, seconds = self._run(*arguments)
        except Exception as error:
            self.raised = in_one_line(error)
            raise
        self.runs_s.append(self._clock() - self.started_s if seconds is None else seconds)
        return result

    @property
    def seconds(self) -> float:
        """Median seconds of the runs, of which the first counts only where there is no other; 0 where there is none."""
        return median(self.runs_s[WARM_UP:] or self.runs_s or [0.0])
