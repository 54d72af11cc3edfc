"""Makes plans for one captured graph: runs the steps that measure its operators, and starts the planner."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import CurveTable, Machine, Plan, Trace
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.engines.native.library import return_free_memory
from threadcast.runtime.engines.open_engine import engine_costs, open_engine
from threadcast.runtime.plans.curves_in_step import (
    MOST_STEPS,
    WARM_UP,
    LookSchedule,
    curves_in_step,
    curves_side_by_side,
)
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.tuning.plan_search import Look, Meanwhile, Try
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies import Problem

PLANNING_S = 0.5
"""Time budget in seconds of the search for a plan, which takes cores from the steps meanwhile. A convention."""

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True, eq=False)
class SolvedProblem:
    """A problem, and the plan that the planner found for it."""

    plan: Plan
    problem: Problem


class Planner:
    """One planning process for all graphs of a call. It starts when `start` or `ask` is first called."""

    def __init__(self) -> None:
        self._process: PlannerProcess | None = None
        self._asked = False

    def start(self) -> None:
        """Start the process, if it does not run: it loads its libraries while there is nothing to plan."""
        if self._process is None:
            self._process = PlannerProcess()

    def ask(self, problem: Problem) -> None:
        """Begin a plan. One that was not fetched is given up."""
        if self._asked:
            self.close()
        self.start()
        assert self._process is not None
        self._process.ask(problem, options={"budget_s": PLANNING_S})
        self._asked = True

    def result(self) -> Plan | None:
        """Return the plan; None until it is made. ExecutionError where planning failed."""
        plan = None if self._process is None else self._process.result()
        self._asked = self._asked and plan is None
        return plan

    def close(self) -> None:
        """End the process; closing again does nothing."""
        if self._process is not None:
            self._process.close()
            self._process, self._asked = None, False


class PlanMaker:
    """Makes plans of `captured` for `machine`, from the traces of the steps that a `PlanSearch` asks for.

    Each of these is a whole step of the caller. `planner` makes the plans. `before` is called before each step and sets
    the memory format of the model's tensors, which other calls of the same model may have changed.
    """

    def __init__(
        self, captured: Captured, machine: Machine, *, planner: Planner,
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.plans: list[SolvedProblem] = []
        """All plans so far, in the order in which they were made."""
        self.captured, self._machine, self._before, self._planner = captured, machine, before, planner
        self._cases = LookSchedule.of(machine).cases
        self._traces: dict[Look | Try, deque[Trace]] = {}
        """Traces of the latest steps of each look and trial. The first step, which warms up, drops out."""
        self._looks: dict[Look, Plan] = {}
        self._alone: CurveTable | None = None
        """The curves of operators that run alone, once all looks were taken."""
        self._planning: Problem | None = None
        self.engine: Engine | None = None
        """The engine that ran the last step; None before the first step and once closed."""

    def prepare(self, step: Look | Try | Meanwhile) -> None:
        """Open the engine for `step`, which must then be the next one. Where this raises, no step has begun."""
        self._engine_for(step.by if isinstance(step, Meanwhile) else step)

    def run(self, step: Look | Try | Meanwhile, *arguments: Any) -> tuple[Any, float | None]:
        """Run one step; return its result and its makespan in seconds, None for a step that is not traced."""
        self._before()
        if isinstance(step, Meanwhile):
            result = self._engine_for(step.by).run(self.captured.bind(*arguments))
            return self.captured.finish(result), None
        result, trace = self._engine_for(step).run_traced(self.captured.bind(*arguments))
        traces = self._traces.setdefault(step, deque(maxlen=MOST_STEPS + WARM_UP))
        traces.append(trace)
        return self.captured.finish(result), trace.makespan_s

    def start_planning(self) -> bool:
        """Start making a plan from all steps so far; return False where they would not change the last plan."""
        graph = self.captured.graph
        if self._alone is None:
            looks = {self._cases[step.number]: self._warm(step) for step in self._traces if isinstance(step, Look)}
            curves = self._alone = curves_in_step(graph, looks)
        else:
            curves = curves_side_by_side(self._alone, graph, self._warm(Try(len(self.plans) - 1)))
            if curves is self._alone:
                return False
        self._planning = Problem(graph, engine_costs().added(curves), self._machine)
        self._planner.ask(self._planning)
        return True

    def poll(self) -> Plan | None:
        """Return the plan that was started; None until it is made. ExecutionError where planning failed."""
        if self._planning is None:
            return None
        plan = self._planner.result()
        if plan is not None:
            _logger.info("planned %.3g s a step, at least %.3g s", plan.makespan_s, plan.lower_bound_s)
            self.plans.append(SolvedProblem(plan, self._planning))
            self._planning = None
        return plan

    def close(self) -> None:
        """End the engine's threads; closing again does nothing."""
        self._planning = None
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _warm(self, step: Look | Try) -> list[Trace]:
        """The traces of a look or trial without those that warm up."""
        return list(self._traces[step])[WARM_UP:]

    def _engine_for(self, step: Look | Try) -> Engine:
        plan = self._plan_of(step)
        if self.engine is not None and self.engine.plan is plan:
            return self.engine
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        self.engine = open_engine(self.captured, plan, self._machine)
        return_free_memory()
        return self.engine

    def _plan_of(self, step: Look | Try) -> Plan:
        if isinstance(step, Try):
            return self.plans[step.plan].plan
        if step not in self._looks:
            self._looks[step] = sequential(self.captured.graph, self._machine, self._cases[step.number])
        return self._looks[step]
