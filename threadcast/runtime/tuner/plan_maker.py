"""Makes a plan for one captured graph: runs the steps that measure its operators, and asks the planner."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, CurveTable, Machine, Trace
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.library import return_free_memory
from threadcast.runtime.plans.curves_in_step import MOST_STEPS, WARM_UP, LookSchedule, curves_in_step, seconds_in_step
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Answer, Question
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.tuner.planning import Asked, Planner
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE

PLANNING_S = 0.2
"""Time budget in seconds of the search for a plan, which takes cores from the steps meanwhile. A convention."""

_logger = logging.getLogger("threadcast")


class PlanMaker:
    """Makes a plan of `captured` for `machine`, from the traces of looks.

    Each step of a look is a whole step of the caller. `planner` makes the plan. `store` is the URL of a store of what
    is known of operators on this machine; None: nothing is known. `before` is called before each step and sets the
    memory format of the model's tensors, which other calls of the same model may have changed.
    """

    def __init__(
        self, captured: Captured, machine: Machine, *, planner: Planner, store: str | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.captured, self._machine, self._before, self._planner = captured, machine, before, planner
        self._schedule, self._store = LookSchedule.of(machine), store
        self._cases: list[Case | tuple[Case, ...]] = list(self._schedule.cases)
        """For each look, the case of all ops, or the case of each op in the graph's order."""
        self._traces: dict[int, deque[Trace]] = {}
        """Traces of the latest steps of each look. The first step, which warms up, drops out."""
        self._look: int | None = None
        """The look whose engine is open."""
        self.engine: Engine | None = None
        """The engine that ran the last step; None before the first step and once closed."""
        self._asked: Asked | None = None
        """What was asked last, until there is an answer."""

    def prepare(self, look: int, *, goes_on: bool) -> None:
        """Open the engine for a step of this look, which must then be the next one. Where this raises, no step has
        begun.

        Unless the look `goes_on` from the step before, what earlier steps of it have shown is forgotten.
        """
        if not goes_on:
            self._traces.pop(look, None)
        if self._look != look or self.engine is None:
            self._close_engine()
            plan = sequential(self.captured.graph, self._machine, self._cases[look])
            self._look, self.engine = look, Engine(self.captured, plan, self._machine)
            return_free_memory()

    def run(self, *arguments: Any) -> tuple[Any, float]:
        """Run one step of the look that was prepared; return its result and its makespan in seconds."""
        assert self.engine is not None
        assert self._look is not None
        self._before()
        inputs = self.captured.bind(*arguments)
        result, trace = self.engine.run_traced(inputs)
        self._traces.setdefault(self._look, deque(maxlen=MOST_STEPS + WARM_UP)).append(trace)
        return self.captured.finish(result, inputs), trace.makespan_s

    @property
    def works(self) -> bool:
        """Whether a plan is being made."""
        return self._asked is not None

    def start_planning(self) -> None:
        """Start making a plan from all looks so far."""
        looks, complete = len(self._traces), len(self._cases) == len(self._schedule.cases)
        curves: CurveTable | None = None
        if complete and looks and self._schedule.most == self._schedule.uniform:
            traces = {case: self._warm(look) for look, case in zip(self._traces, self._schedule.cases, strict=True)}
            curves = curves_in_step(self.captured.graph, traces)
        self._asked = self._planner.ask(Question(
            self.captured.graph, self._machine, NATIVE_ENGINE, self.observed, self._store,
            curves is None and 0 < looks < self._schedule.most, curves, {"budget_s": PLANNING_S},
        ))  # fmt: skip

    def poll(self) -> Answer | None:
        """Return the answer to `start_planning`; None until there is one. ExecutionError where planning failed.

        A look is one more look to take.
        """
        try:
            answer = None if self._asked is None else self._planner.answer(self._asked)
        except ExecutionError:
            self._asked = None
            raise
        if answer is None:
            return None
        self._asked = None
        if answer.look is not None:
            self._cases.append(answer.look)
        elif answer.plan is not None:
            _logger.info("planned %.3g s a step, at least %.3g s", answer.plan.makespan_s, answer.plan.lower_bound_s)
        return answer

    def problem(self, curves: CurveTable) -> Problem:
        """Return the problem that a plan from these curves solves."""
        return Problem(self.captured.graph, NATIVE_ENGINE.added(curves), self._machine)

    @property
    def observed(self) -> Mapping[str, Observed]:
        """What all looks so far show of each distinct op, by key: seconds of each of some steps, by case."""
        found: dict[str, dict[Case, list[float]]] = {}
        for look in self._traces:
            cases = self._cases[look]
            of_op = [cases] * len(self.captured.graph) if isinstance(cases, Case) else cases
            for trace in self._warm(look):
                for op, case, seconds in zip(
                    self.captured.graph.ops, of_op, seconds_in_step(self.captured.graph, trace), strict=True
                ):
                    found.setdefault(op.key, {}).setdefault(case, []).append(seconds)
        return found

    def close(self) -> None:
        """End the engine's threads, and give up the plan that is being made; closing again does nothing."""
        if self._asked is not None:
            self._planner.give_up(self._asked)
            self._asked = None
        self._close_engine()

    def _warm(self, look: int) -> list[Trace]:
        """The traces of a look without those that warm up."""
        return list(self._traces[look])[WARM_UP:]

    def _close_engine(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None
