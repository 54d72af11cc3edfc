"""When a step began, and how long it took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from threadcast.runtime.tuning.contender import Run


class TimedRun:
    """Runs a step, and records when it began and how many seconds it took."""

    def __init__(self, run: Run, clock: Callable[[], float]) -> None:
        self._run, self._clock = run, clock
        self.started_s = self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        self.started_s = self._clock()
        result, seconds = self._run(*arguments)
        self.seconds = self._clock() - self.started_s if seconds is None else seconds
        return result
