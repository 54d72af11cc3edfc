"""Looks at the operators of one graph: a few steps that run all of them one after the other, and time each.

The first look gives every operator all cores, which is seldom much slower than PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, CurveTable, Machine, Trace
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.library import return_free_memory
from threadcast.runtime.plans.curves_in_step import WARM_UP, LookSchedule, curves_in_step, seconds_in_step
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Question
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.plans.variant import Variant
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE

HOPELESS = 1.5
"""Ratio of the first look's seconds to those of the best way known, above which no plan is made: what differs between a
look and a plan has not been worth so much in any network (docs/figures/steps.md)."""
PLANNING_S = 0.2
"""Time budget in seconds of the search for a plan, which takes cores from the steps meanwhile. A convention."""


@dataclass(frozen=True, slots=True)
class Look:
    """A traced step that runs all operators of `variant` one after the other, with the thread counts of look number
    `number`, counted from 0."""

    variant: Variant
    number: int


class Looks:
    """The looks at `captured` on `machine`: how many steps each takes, and what they have shown.

    The first looks of the schedule follow each other without a question; then one is taken where it is asked for. With
    `aside` one step of the caller's takes all that a look runs. `before` is called before each step and sets the memory
    format of the model's tensors, which other calls of the same model may have changed.
    """

    def __init__(
        self, captured: Captured, machine: Machine, *, schedule: LookSchedule | None = None, aside: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.captured, self._machine, self._aside, self._before = captured, machine, aside, before
        self._schedule = schedule or LookSchedule.of(machine)
        self.wanted = self._schedule.uniform
        """How many looks are to be taken before a plan is made."""
        self.look_s: list[float] = []
        """Median seconds of a step of each look, by its number."""
        self.broken_off_s: float | None = None
        """Fewest seconds of a step of the current look before it was broken off; None where it was not."""
        self.engine: Engine | None = None
        """The engine that ran the last step; None before the first step and once closed."""
        self._cases: list[Case | tuple[Case, ...]] = list(self._schedule.cases)
        """For each look, the case of all ops, or the case of each op in the graph's order."""
        self._traces: dict[int, list[Trace]] = {}
        """Traces of the steps of each look. The first step warms up."""
        self._opened: int | None = None
        """The look whose engine is open."""
        self._seconds: list[float] = []
        """Seconds of each step of the current look so far."""

    @property
    def complete(self) -> bool:
        """Whether all looks that are wanted were taken."""
        return len(self.look_s) >= self.wanted

    @property
    def begun(self) -> bool:
        """Whether the next step would be one of a look that has begun."""
        return bool(self._seconds)

    def steps(self, step_s: float) -> int:
        """Number of the caller's steps of a look, if each takes about `step_s` seconds."""
        return 1 if self._aside else self._schedule.runs(step_s)

    def open(self) -> int:
        """Open the engine for the next step, and return the number of its look. Where this raises, none has begun."""
        number = len(self.look_s)
        if not self._seconds:
            self._traces[number] = []
        if self._opened != number or self.engine is None:
            self.close()
            plan = sequential(self.captured.graph, self._machine, self._cases[number])
            self._opened, self.engine = number, Engine(self.captured, plan, self._machine)
            return_free_memory()
        return number

    def run(self, *arguments: Any) -> tuple[Any, float]:
        """Run one step of the look that is open; return its result and its makespan in seconds."""
        assert self.engine is not None
        self._before()
        inputs = self.captured.bind(*arguments)
        result, trace = self.engine.run_traced(inputs)
        self._traces[len(self.look_s)].append(trace)
        return self.captured.finish(result, inputs), trace.makespan_s

    def observe(self, seconds: float) -> bool:
        """Record the seconds of a step; return whether the look is over."""
        self._seconds.append(seconds)
        timed = self._seconds[0 if self._aside else WARM_UP :]
        if not timed or len(self._seconds) < self.steps(sum(timed) / len(timed)):
            return False
        self._seconds.clear()
        self.broken_off_s = None
        self.look_s.append(median(timed))
        return True

    def break_off(self) -> None:
        """Have the look that has begun, if any, begin once more."""
        if self._seconds:
            self.broken_off_s = min(self._seconds)
            self._seconds.clear()

    def hopeless(self, best_s: float) -> bool:
        """Return whether the first look was so slow that no plan can beat the best way known, of `best_s` seconds."""
        return len(self.look_s) == 1 and self.look_s[0] > HOPELESS * best_s

    def ask_for_more(self, look: tuple[Case, ...] | None) -> None:
        """Have all looks of the schedule taken, or once they were this one, with the case of each op."""
        if look is not None:
            self._cases.append(look)
        self.wanted = max(self._schedule.uniform, len(self.look_s) + 1)

    def question(self, store: str | None) -> Question:
        """Return what is asked of the planner; `store` is the URL of a store of what is known of operators."""
        graph, looks = self.captured.graph, len(self.look_s)
        curves: CurveTable | None = None
        if looks and len(self._cases) == len(self._schedule.cases) == looks == self._schedule.most:
            traces = {case: self._warm(look) for look, case in enumerate(self._schedule.cases)}
            curves = curves_in_step(graph, traces)
        more = curves is None and 0 < looks < self._schedule.most
        asked = {"budget_s": PLANNING_S}
        return Question(graph, self._machine, NATIVE_ENGINE, self.observed, store, more, curves, asked)

    def problem(self, curves: CurveTable) -> Problem:
        """Return the problem that a plan from these curves solves."""
        return Problem(self.captured.graph, NATIVE_ENGINE.added(curves), self._machine)

    @property
    def observed(self) -> Mapping[str, Observed]:
        """What all looks so far show of each distinct op, by key: seconds of each of some steps, by case."""
        graph = self.captured.graph
        found: dict[str, dict[Case, list[float]]] = {}
        for look in self._traces:
            cases = self._cases[look]
            of_op = [cases] * len(graph) if isinstance(cases, Case) else cases
            for trace in self._warm(look):
                for op, case, seconds in zip(graph.ops, of_op, seconds_in_step(graph, trace), strict=True):
                    found.setdefault(op.key, {}).setdefault(case, []).append(seconds)
        return found

    def close(self) -> None:
        """End the engine's threads; closing again does nothing."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _warm(self, look: int) -> list[Trace]:
        """The traces of a look without those that warm up."""
        return self._traces[look][WARM_UP:]
