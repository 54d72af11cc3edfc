"""Finding the fastest way to run one captured call: measure in the step, plan, and compare with the default.

Every phase runs the caller's own steps, so nothing is run in vain and a training step is never run twice.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from threadcast.collector.capture import Captured
from threadcast.core import Machine, Plan
from threadcast.core.errors import ThreadcastError
from threadcast.scheduler.runtime.engine import Engine
from threadcast.scheduler.runtime.engines import open_engine
from threadcast.scheduler.runtime.guard import Guard, Verdict
from threadcast.scheduler.runtime.layout import Layout
from threadcast.scheduler.runtime.plan_maker import PlanMaker, Run

DRIFT_STEPS = 50
"""Steps whose median is held against what the guard measured."""
DRIFT_LIMIT = 1.25
"""Times what the guard measured, from which on plan and default are compared again."""

_logger = logging.getLogger("threadcast")


@dataclass(slots=True)
class Report:
    """What runs the steps of one kind of arguments, and why.

    `runs` is "measuring" until the guard has decided, then "plan" or "default". Without a plan `reason` says why.
    """

    runs: str = "measuring"
    reason: str = ""
    layout: Layout = "as given"
    plan: Plan | None = None
    verdict: Verdict | None = None
    predicted_s: dict[Layout, float] = field(default_factory=dict)
    """The plan's makespan in each layout tried."""


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    layout: Layout
    captured: Captured
    plan: Plan


class Tuning:
    """Runs one kind of call; each call is a whole step, whoever runs it.

    `capture(layout)` gives its graph, `lie(layout)` lets the model's tensors lie so. CaptureError where it cannot be
    captured. For one thread at a time.
    """

    def __init__(
        self,
        default: Run,
        capture: Callable[[Layout], Captured],
        lie: Callable[[Layout], None],
        layouts: Sequence[Layout],
        machine: Machine,
    ) -> None:
        self.report = Report()
        self._default, self._capture, self._lie, self._machine = default, capture, lie, machine
        self._engine: Engine | None = None
        self._runs = self._phases(layouts, capture(layouts[0]))
        self._recent: deque[float] = deque(maxlen=DRIFT_STEPS)

    def __call__(self, *arguments: Any) -> Any:
        return self._next()(*arguments)

    def _next(self) -> Run:
        try:
            return next(self._runs)
        except ThreadcastError as error:  # of measuring or planning, not of the step, which has not begun
            _logger.warning("this step runs as before: %s", error)
            self.close()
            self._lie("as given")
            self.report.runs, self.report.reason = "default", str(error)
            self._runs = self._forever(self._default)
            return self._default

    def close(self) -> None:
        """End the engine's threads."""
        self._runs.close()
        self._release()

    def _phases(self, layouts: Sequence[Layout], first: Captured) -> Generator[Run]:
        """What runs each of the caller's steps."""
        candidates = []
        for layout in layouts:
            captured = first if layout == layouts[0] else self._capture(layout)
            self._lie(layout)
            plan = yield from PlanMaker(captured, self._machine).made()
            candidates.append(_Candidate(layout, captured, plan))
            self.report.predicted_s[layout] = plan.makespan_s
        best = min(candidates, key=lambda candidate: candidate.plan.makespan_s)
        self.report.layout, self.report.plan = best.layout, best.plan
        self._engine = open_engine(best.captured, best.plan, self._machine)
        while True:
            yield from self._guarded(best, self._engine)
            if self.report.runs == "default":
                break
            yield from self._watched(partial(self._planned, best, self._engine))
        self._release()
        self._lie("as given")
        yield from self._forever(self._default)

    def _forever(self, run: Run) -> Generator[Run]:
        while True:
            yield run

    def _guarded(self, best: _Candidate, engine: Engine) -> Generator[Run]:
        guard = Guard(partial(self._by_default), partial(self._planned, best, engine), rest=engine.rest)
        while guard.verdict is None:
            yield guard
        self.report.verdict, self.report.runs = guard.verdict, guard.verdict.kept
        _logger.info("the %s runs this step: default over plan is %.2f", guard.verdict.kept, guard.verdict.gain)

    def _watched(self, planned: Run) -> Generator[Run]:
        """The plan, until it has become much slower than at first."""
        expected_s = None
        self._recent.clear()

        def timed(*arguments: Any) -> Any:
            started_s = time.perf_counter()
            result = planned(*arguments)
            self._recent.append(time.perf_counter() - started_s)
            return result

        while True:
            for _ in range(DRIFT_STEPS):
                yield timed
            now_s = median(self._recent)
            expected_s = expected_s or now_s
            if now_s > DRIFT_LIMIT * expected_s:
                _logger.info("a step takes %.3g s, at first %.3g s: comparing anew", now_s, expected_s)
                return

    def _by_default(self, *arguments: Any) -> Any:
        self._lie("as given")
        return self._default(*arguments)

    def _planned(self, best: _Candidate, engine: Engine, *arguments: Any) -> Any:
        self._lie(best.layout)
        return engine.run(best.captured.bind(*arguments))

    def _release(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
