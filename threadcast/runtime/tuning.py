"""Finding the fastest way to run one captured call: measure in the step, plan, and compare with the default.

Every phase runs the caller's own steps, so nothing is run in vain and a training step is never run twice.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median
from threading import Lock
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import Core, Machine, OpGraph, Plan
from threadcast.core.errors import CaptureError, ThreadcastError
from threadcast.runtime.engine import PlanEngine
from threadcast.runtime.engines import has_native_engine, open_engine
from threadcast.runtime.fusion.fuse import fused
from threadcast.runtime.guard import Guard, Verdict
from threadcast.runtime.layout import Layout, converted
from threadcast.runtime.malleable_plan import MalleablePlan, counts_below
from threadcast.runtime.native.library import return_free_memory
from threadcast.runtime.plan_maker import PlanMaker, Run
from threadcast.runtime.plan_store import Kept, PlanStore
from threadcast.scheduler.policies import Problem
from threadcast.threads.this_process import this_process

DRIFT_STEPS = 50
"""Steps whose median is held against what the guard measured."""
DRIFT_LIMIT = 1.25
"""Times what the guard measured, from which on plan and default are compared again."""

_logger = logging.getLogger("threadcast")


@dataclass(slots=True)
class Report:
    """What runs the steps of one kind of arguments, and why.

    `runs` is "measuring" until all contenders have been compared, then "plan", "default", "eager, channels last" or the
    name of a backend.
    Where nothing could be compared `reason` says why.
    """

    runs: str = "measuring"
    reason: str = ""
    layout: Layout = "as given"
    """Of the plan."""
    fused: bool = False
    """Whether point-wise operators are fused in the plan's graph."""
    plan: Plan | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Of each contender, in the order in which they came, against the best before it; plans come first."""
    predicted_s: dict[str, float] = field(default_factory=dict)
    """The plan's makespan in each layout tried, and in the best with fused operators."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan, and the graph and the memory format that it is for."""

    layout: Layout
    captured: Captured
    plan: Plan
    unfused: OpGraph
    """The graph as it was captured."""
    step_s: float
    """What its steps took when last timed."""
    problem: Problem | None = None
    """What it was made from, where that is known."""
    fewer: Mapping[int, Plan] = field(default_factory=dict)
    """Plans for smaller numbers of cores that are known."""

    @property
    def fused(self) -> bool:
        """Whether point-wise operators are one in `captured`."""
        return self.captured.graph is not self.unfused

    @property
    def name(self) -> str:
        """Tells it from the others of a call."""
        return f"{self.layout}, fused" if self.fused else self.layout


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """One way to run a call. `holds` tells whether it still does what the default does; `candidate` is its plan."""

    name: str
    run: Run
    holds: Callable[[], bool] = lambda: True
    candidate: Candidate | None = None


class Tuning:
    """Runs one kind of call; each call is a whole step, whoever runs it.

    `capture(layout)` gives its graph, `lie(layout)` lets the model's tensors lie so, `rivals` makes further contenders
    when their turn comes. A plan that `plans` keep for this `call` and graph runs at once. `fuse` also tries the graph
    with fused operators. CaptureError where it cannot be captured. For one thread at a time.
    """

    def __init__(
        self,
        default: Run,
        capture: Callable[[Layout], Captured],
        lie: Callable[[Layout], None],
        layouts: Sequence[Layout],
        machine: Machine,
        *,
        call: object,
        plans: PlanStore,
        rivals: Iterable[Contender] = (),
        fuse: bool = True,
    ) -> None:
        self.report = Report()
        self._fuse = fuse
        self._call, self._plans = call, plans
        self._capture, self._lie, self._machine, self._rivals = capture, lie, machine, rivals
        self._eagerly = default
        self._default = Contender("default", partial(self._run_eagerly, "as given"))
        self.kept = self._default
        """What ran fastest when last compared."""
        self._engines: dict[Candidate, PlanEngine] = {}
        self._fewer: dict[Candidate, Mapping[int, Plan]] = {}
        """Plans for smaller numbers of cores, once they have been made."""
        self._kept_s: dict[Candidate, float] = {}
        """Seconds a step of plans that have been written to the store."""
        self._sizing = Lock()
        self._cores: Sequence[Core] = machine.cores
        self._malleable: MalleablePlan | None = None
        layouts = plans.layouts_first(call, layouts)
        self._runs = self._phases(layouts, capture(layouts[0]))

    def __call__(self, *arguments: Any) -> Any:
        return self._next()(*arguments)

    @property
    def follows(self) -> bool:
        """Whether it can do with other cores than it was made for."""
        return self._malleable is not None

    def resize(self, cores: Sequence[Core]) -> None:
        """Use these cores from the next operator boundary on, from any thread, as far as it `follows`."""
        with self._sizing:
            self._cores = cores
            self._apply_size()

    def close(self) -> None:
        """End the engine's threads."""
        self._runs.close()
        self._release()

    def _next(self) -> Run:
        try:
            return next(self._runs)
        except Exception as error:  # noqa: BLE001 - of measuring or planning: the step has not begun, and can run as before
            reason = str(error) or "measuring was broken off"
            _logger.warning("this step runs as before: %s", reason)
            self.close()
            self.report.runs, self.report.reason = "default", reason
            self.kept = self._default
            self._runs = self._for_ever(self._default.run)
            return next(self._runs)

    def _phases(self, layouts: Sequence[Layout], first: Captured) -> Generator[Run]:
        """What runs each of the caller's steps."""
        yield from self._by_kept_plan(first, layouts[0])
        candidates = []
        for layout in layouts:
            try:
                captured = first if layout == layouts[0] else self._capture(layout)
            except CaptureError as error:
                _logger.info("%s: %s", layout, error)
                continue
            made = yield from PlanMaker(captured, self._machine, before=partial(self._lie, layout)).made()
            candidates.append(Candidate(layout, captured, made.plan, captured.graph, made.step_s, made.problem))
        candidates += yield from self._with_fused(min(candidates, key=_step_s))
        candidates.sort(key=_step_s)
        self.report.predicted_s = {candidate.name: candidate.plan.makespan_s for candidate in candidates}
        self._report_plan(candidates[0])
        planned = [self._planned(candidate) for candidate in candidates]
        possible = [layout for layout in layouts if any(candidate.layout == layout for candidate in candidates)]
        eager = [self._eager(layout) for layout in possible if layout != "as given"]
        champion = yield from self._compared(self._default, chain(planned, eager, self._rivals))
        while True:
            if champion.candidate is None:
                self._plans.drop(first.graph)
            yield from self._settled(champion)
            self.report.runs = "measuring"
            same = champion.holds() and champion is not self._default
            again = [champion] if same else map(self._planned, candidates)
            champion = yield from self._compared(self._default, again)

    def _for_ever(self, run: Run) -> Generator[Run]:
        """What `close` can end, as `itertools.repeat` cannot be."""
        while True:
            yield run

    def _with_fused(self, best: Candidate) -> Generator[Run, None, list[Candidate]]:
        """`best` with its point-wise operators fused, planned anew; nothing where that cannot be."""
        captured = _fused(best.captured) if self._fuse else None
        if captured is None:
            return []
        made = yield from PlanMaker(captured, self._machine, before=partial(self._lie, best.layout)).made()
        return [Candidate(best.layout, captured, made.plan, best.unfused, made.step_s, made.problem)]

    def _by_kept_plan(self, first: Captured, layout: Layout) -> Generator[Run]:
        """Steps by the plan that an earlier process kept, as long as it is as fast as it was."""
        kept = self._plans.read(first.graph)
        if kept is None or kept.layout != layout:
            return
        try:
            captured = (fused(first) if kept.fused else None) or first
            problem = None if kept.curves is None else Problem(captured.graph, kept.curves, self._machine)
            candidate = Candidate(layout, captured, kept.plan, first.graph, kept.step_s, problem, kept.fewer)
            planned = self._planned(candidate)
        except ThreadcastError as error:
            _logger.warning("a kept plan does not run and is made anew: %s", error)
            return
        self._kept_s[candidate] = kept.step_s
        self.report.predicted_s[candidate.name] = kept.plan.makespan_s
        yield from self._settled(planned, expected_s=kept.step_s)
        self._release()
        self.report = Report()

    def _compared(self, champion: Contender, challengers: Iterable[Contender]) -> Generator[Run, None, Contender]:
        """Steps by turns, until it is known which contender is fastest."""
        for challenger in challengers:
            return_free_memory()
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

    def _settled(self, champion: Contender, *, expected_s: float | None = None) -> Generator[Run]:
        """Steps by `champion`, until they have become much slower, or wrong."""
        self.kept = champion
        plan = champion.candidate
        self._release(but=plan)
        return_free_memory()
        if plan is not None:
            self._report_plan(plan)
        self.report.runs = champion.name if plan is None else "plan"
        recent: list[float] = []
        if plan is not None:
            self._follow(plan)

        def timed(*arguments: Any) -> Any:
            started_s = time.perf_counter()
            result = champion.run(*arguments)
            recent.append(time.perf_counter() - started_s)
            return result

        try:
            while champion.holds():
                yield timed
                if self._malleable is not None and not self._malleable.whole:
                    recent.clear()
                if len(recent) < DRIFT_STEPS:
                    continue
                now_s = median(recent)
                recent.clear()
                if expected_s is None:
                    expected_s = now_s
                    self._keep(champion, now_s)
                if now_s > DRIFT_LIMIT * expected_s:
                    _logger.info("a step takes %.3g s, at first %.3g s: comparing anew", now_s, expected_s)
                    return
        finally:
            self._unfollow()

    def _keep(self, champion: Contender, step_s: float) -> None:
        if (plan := champion.candidate) is not None:
            self._kept_s[plan] = step_s
            self._write(plan)

    def _write(self, plan: Candidate) -> None:
        fewer = self._fewer.get(plan, plan.fewer)
        missing = plan.problem is not None and not set(counts_below(len(self._machine))) <= set(fewer)
        curves = plan.problem.curves if plan.problem is not None and missing else None
        kept = Kept(plan.plan, plan.layout, self._kept_s[plan], plan.fused, fewer, curves)
        self._plans.write(self._call, plan.unfused, kept)

    def _follow(self, plan: Candidate) -> None:
        """Let the engine of `plan` go with the cores that there are, from now on."""

        weak = weakref.ref(self)  # a model that is dropped ends its planning, not the other way round

        def note(fewer: Mapping[int, Plan]) -> None:
            if (tuning := weak()) is not None:
                tuning._note(plan, fewer)

        with self._sizing:
            known = self._fewer.get(plan, plan.fewer)
            engine = self._engines[plan]
            self._malleable = MalleablePlan(engine, plan.plan, self._machine, plan.problem, known, done=note)
            self._apply_size()

    def _note(self, plan: Candidate, fewer: Mapping[int, Plan]) -> None:
        self._fewer[plan] = fewer
        if fewer:
            rates = {n: 1 / of.makespan_s for n, of in {**fewer, len(self._machine): plan.plan}.items()}
            this_process().steps.expect(rates)
        if plan in self._kept_s and fewer.keys() != plan.fewer.keys():
            self._write(plan)

    def _apply_size(self) -> None:
        if self._malleable is None:
            return
        try:
            self._malleable.resize(self._cores)
        except ThreadcastError as error:
            _logger.warning("a plan does not follow the cores: %s", error)
            if (malleable := self._let_go()) is not None:
                malleable.close()

    def _unfollow(self) -> None:
        with self._sizing:
            malleable = self._let_go()
        if malleable is not None:
            malleable.close()  # not with the lock held: whoever takes cores away must not wait for a planner to end

    def _let_go(self) -> MalleablePlan | None:
        """What followed the cores, to be closed; its engine has all of them again."""
        malleable, self._malleable = self._malleable, None
        if malleable is not None:
            try:
                malleable.resize(self._machine.cores)  # what compares plans compares whole ones
            except ThreadcastError as error:
                _logger.warning("a plan stays with the cores that it has: %s", error)
        return malleable

    def _report_plan(self, of: Candidate) -> None:
        self.report.layout, self.report.plan, self.report.fused = of.layout, of.plan, of.fused

    def _eager(self, layout: Layout) -> Contender:
        return Contender(f"eager, {layout}", partial(self._run_eagerly, layout))

    def _run_eagerly(self, layout: Layout, *arguments: Any) -> Any:
        self._lie(layout)
        return self._eagerly(*(converted(arguments) if layout == "channels last" else arguments))

    def _planned(self, candidate: Candidate) -> Contender:
        layout, captured = candidate.layout, candidate.captured
        if candidate not in self._engines:
            self._engines[candidate] = open_engine(captured, candidate.plan, self._machine)
        engine = self._engines[candidate]

        def run(*arguments: Any) -> Any:
            self._lie(layout)
            return engine.run(captured.bind(*arguments))

        return Contender(f"plan, {candidate.name}", run, candidate=candidate)

    def _rest(self) -> None:
        for engine in self._engines.values():
            engine.rest()

    def _release(self, *, but: Candidate | None = None) -> None:
        for candidate in [candidate for candidate in self._engines if candidate is not but]:
            self._engines.pop(candidate).close()


def _step_s(candidate: Candidate) -> float:
    return candidate.step_s


def _fused(captured: Captured) -> Captured | None:
    """`captured` with fused operators; None where there are none, or where they cannot be made, with a message."""
    try:
        return fused(captured) if has_native_engine() else None
    except ThreadcastError as error:
        _logger.warning("operators are not fused: %s", error)
        return None
