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
from threadcast.runtime.plans.curves_in_step import STEPS, curves_in_step, curves_side_by_side
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.tuning.plan_search import Meanwhile, Probe, Try
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies import Problem

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True, eq=False)
class SolvedProblem:
    """A problem, and the plan that the planner found for it."""

    plan: Plan
    problem: Problem


class PlanMaker:
    """Makes plans of `captured` for `machine`, from the traces of the steps that a `PlanSearch` asks for.

    Each of these is a whole step of the caller. `before` is called before each step and sets the memory format of the
    model's tensors, which other calls of the same model may have changed.
    """

    def __init__(self, captured: Captured, machine: Machine, *, before: Callable[[], None]) -> None:
        self.plans: list[SolvedProblem] = []
        """All plans so far, in the order in which they were made."""
        self.captured, self._machine, self._before = captured, machine, before
        self._traces: dict[Probe | Try, deque[Trace]] = {}
        """Traces of the latest steps of each probe and trial. The first steps, which warm up, drop out."""
        self._probes: dict[Probe, Plan] = {}
        self._alone: CurveTable | None = None
        """The curves of operators that run alone, once all have been probed."""
        self._planning: tuple[PlannerProcess, Problem] | None = None
        self.engine: Engine | None = None
        """The engine that ran the last step; None before the first step and once closed."""

    def prepare(self, step: Probe | Try | Meanwhile) -> None:
        """Open the engine for `step`, which must then be the next one. Where this raises, no step has begun."""
        self._engine_for(step.by if isinstance(step, Meanwhile) else step)

    def run(self, step: Probe | Try | Meanwhile, *arguments: Any) -> tuple[Any, float | None]:
        """Run one step; return its result and its makespan in seconds, None for a step that is not traced."""
        self._before()
        if isinstance(step, Meanwhile):
            result = self._engine_for(step.by).run(self.captured.bind(*arguments))
            return self.captured.finish(result), None
        result, trace = self._engine_for(step).run_traced(self.captured.bind(*arguments))
        self._traces.setdefault(step, deque(maxlen=STEPS)).append(trace)
        return self.captured.finish(result), trace.makespan_s

    def start_planning(self) -> bool:
        """Start making a plan from all steps so far; return False where they would not change the last plan."""
        graph = self.captured.graph
        if self._alone is None:
            probed = {step.case: traces for step, traces in self._traces.items() if isinstance(step, Probe)}
            curves = self._alone = curves_in_step(graph, probed)
        else:
            curves = curves_side_by_side(self._alone, graph, self._traces[Try(len(self.plans) - 1)])
            if curves is self._alone:
                return False
        problem = Problem(graph, engine_costs().added(curves), self._machine)
        self._planning = PlannerProcess(), problem
        self._planning[0].ask(problem)
        return True

    def poll(self) -> Plan | None:
        """Return the plan that was started; None until it is made. ExecutionError where planning failed."""
        if self._planning is None:
            return None
        planner, problem = self._planning
        plan = planner.result()
        if plan is not None:
            _logger.info("planned %.3g s a step, at least %.3g s", plan.makespan_s, plan.lower_bound_s)
            self._end_planning()
            self.plans.append(SolvedProblem(plan, problem))
        return plan

    def close(self) -> None:
        """End the planning process and the engine's threads; closing again does nothing."""
        self._end_planning()
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _end_planning(self) -> None:
        if self._planning is not None:
            self._planning[0].close()
            self._planning = None

    def _engine_for(self, step: Probe | Try) -> Engine:
        plan = self._plan_of(step)
        if self.engine is not None and self.engine.plan is plan:
            return self.engine
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        self.engine = open_engine(self.captured, plan, self._machine)
        return_free_memory()
        return self.engine

    def _plan_of(self, step: Probe | Try) -> Plan:
        if isinstance(step, Try):
            return self.plans[step.plan].plan
        if step not in self._probes:
            self._probes[step] = sequential(self.captured.graph, self._machine, step.case)
        return self._probes[step]
