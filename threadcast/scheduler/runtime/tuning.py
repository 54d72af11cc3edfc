"""Finding the fastest way to run one captured call: measure in the step, plan, and compare with the default.

Every phase runs the caller's own steps, so nothing is run in vain and a training step is never run twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
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

    `runs` is "measuring" until all contenders have been compared, then "plan", "default", or the name of a backend.
    Where nothing could be compared `reason` says why.
    """

    runs: str = "measuring"
    reason: str = ""
    layout: Layout = "as given"
    """Of the plan."""
    plan: Plan | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Of each contender, in the order in which they came, against the best before it; the first is the plan."""
    predicted_s: dict[Layout, float] = field(default_factory=dict)
    """The plan's makespan in each layout tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """One way to run a call. `holds` tells whether it still does what the default does."""

    name: str
    run: Run
    holds: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    layout: Layout
    captured: Captured
    plan: Plan


class Tuning:
    """Runs one kind of call; each call is a whole step, whoever runs it.

    `capture(layout)` gives its graph, `lie(layout)` lets the model's tensors lie so, `rivals` makes further contenders
    when their turn comes. CaptureError where it cannot be captured. For one thread at a time.
    """

    def __init__(
        self,
        default: Run,
        capture: Callable[[Layout], Captured],
        lie: Callable[[Layout], None],
        layouts: Sequence[Layout],
        machine: Machine,
        *,
        rivals: Iterable[Contender] = (),
    ) -> None:
        self.report = Report()
        self._capture, self._lie, self._machine, self._rivals = capture, lie, machine, rivals
        self._default = Contender("default", partial(self._by_default, default))
        self._engine: Engine | None = None
        self._runs = self._phases(layouts, capture(layouts[0]))

    def __call__(self, *arguments: Any) -> Any:
        return self._next()(*arguments)

    def close(self) -> None:
        """End the engine's threads."""
        self._runs.close()
        self._release()

    def _next(self) -> Run:
        try:
            return next(self._runs)
        except ThreadcastError as error:  # of measuring or planning, not of the step, which has not begun
            _logger.warning("this step runs as before: %s", error)
            self.close()
            self.report.runs, self.report.reason = "default", str(error)
            self._runs = self._settled(self._default)
            return next(self._runs)

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
        champion = yield from self._compared(self._default, chain([self._planned(best)], self._rivals))
        while champion is not self._default:
            yield from self._settled(champion)
            self.report.runs = "measuring"
            again = champion if champion.holds() else self._planned(best)
            champion = yield from self._compared(self._default, [again])
        yield from self._settled(champion)

    def _compared(self, champion: Contender, challengers: Iterable[Contender]) -> Generator[Run, None, Contender]:
        """Steps by turns, until it is known which contender is fastest."""
        for challenger in challengers:
            guard = Guard(champion.run, challenger.run, rest=self._rest)
            while guard.verdict is None and champion.holds() and challenger.holds():
                yield guard
            if guard.verdict is None:
                break
            self.report.verdicts[challenger.name] = guard.verdict
            gain = guard.verdict.gain
            _logger.info("%s over %s: %.2f", champion.name, challenger.name, gain)
            champion = challenger if guard.verdict.kept == "plan" else champion
        return champion

    def _settled(self, champion: Contender) -> Generator[Run]:
        """Steps by `champion`; those by the default for ever, others until they have become much slower, or wrong."""
        if champion.name != "plan":
            self._release()
        self.report.runs = self.report.runs if self.report.reason else champion.name
        recent: list[float] = []
        expected_s = None

        def timed(*arguments: Any) -> Any:
            started_s = time.perf_counter()
            result = champion.run(*arguments)
            recent.append(time.perf_counter() - started_s)
            return result

        while champion.holds():
            yield champion.run if champion is self._default else timed
            if len(recent) < DRIFT_STEPS:
                continue
            now_s = median(recent)
            expected_s = expected_s or now_s
            recent.clear()
            if now_s > DRIFT_LIMIT * expected_s:
                _logger.info("a step takes %.3g s, at first %.3g s: comparing anew", now_s, expected_s)
                return

    def _by_default(self, default: Run, *arguments: Any) -> Any:
        self._lie("as given")
        return default(*arguments)

    def _planned(self, best: _Candidate) -> Contender:
        if self._engine is None:
            self._engine = open_engine(best.captured, best.plan, self._machine)
        engine = self._engine

        def run(*arguments: Any) -> Any:
            self._lie(best.layout)
            return engine.run(best.captured.bind(*arguments))

        return Contender("plan", run)

    def _rest(self) -> None:
        if self._engine is not None:
            self._engine.rest()

    def _release(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
