"""Makes plans for one captured graph: runs the steps that measure its operators, and starts the planner."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import CurveTable, Machine, Plan, Trace
from threadcast.runtime.engines.engine import PlanEngine
from threadcast.runtime.engines.native.library import return_free_memory
from threadcast.runtime.engines.open_engine import engine_costs, open_engine
from threadcast.runtime.plans.curves_in_step import STEPS, as_seen, curves_in_step
from threadcast.runtime.plans.planning import Planning
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.tuning.plan_search import Meanwhile, Probe, Try
from threadcast.scheduler.policies import Problem

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True, eq=False)
class MadePlan:
    """A plan, and the problem that it was made from."""

    plan: Plan
    problem: Problem


class PlanMaker:
    """Makes plans of `captured` for `machine`, from the traces of the steps that a `PlanSearch` asks for.

    Each of these is a whole step of the caller. `before` is called before each step and sets the memory format of the
    model's tensors, which other calls of the same model may have changed.
    """

    def __init__(self, captured: Captured, machine: Machine, *, before: Callable[[], None]) -> None:
        self.plans: list[MadePlan] = []
        """All plans so far, in the order in which they were made."""
        self._captured, self._machine, self._before = captured, machine, before
        self._traces: dict[Probe | Try, deque[Trace]] = {}
        """Traces of the latest steps of each probe and trial. The first steps, which warm up, drop out."""
        self._probes: dict[Probe, Plan] = {}
        self._alone: CurveTable | None = None
        """The curves of operators that run alone, once all have been probed."""
        self._planning: tuple[Planning, Problem] | None = None
        self._engine: PlanEngine | None = None

    def prepare(self, step: Probe | Try | Meanwhile) -> None:
        """Open the engine for `step`, which must then be the next one. Where this raises, no step has begun."""
        self._engine_for(step.by if isinstance(step, Meanwhile) else step)

    def run(self, step: Probe | Try | Meanwhile, *arguments: Any) -> tuple[Any, float | None]:
        """Run one step; return its result and its makespan in seconds, None for a step that is not traced."""
        self._before()
        if isinstance(step, Meanwhile):
            return self._engine_for(step.by).run(self._captured.bind(*arguments)), None
        result, trace = self._engine_for(step).run_traced(self._captured.bind(*arguments))
        self._traces.setdefault(step, deque(maxlen=STEPS)).append(trace)
        return result, trace.makespan_s

    @property
    def engine(self) -> PlanEngine | None:
        """The engine that ran the last step; None before the first step and once closed."""
        return self._engine

    def start_planning(self) -> bool:
        """Start making a plan from all steps so far; return False where they would not change the last plan."""
        graph = self._captured.graph
        if self._alone is None:
            probed = {step.case: traces for step, traces in self._traces.items() if isinstance(step, Probe)}
            curves = self._alone = curves_in_step(graph, probed)
        else:
            curves = as_seen(self._alone, graph, self._traces[Try(len(self.plans) - 1)])
            if curves is self._alone:
                return False
        problem = Problem(graph, engine_costs().added(curves), self._machine)
        self._planning = Planning(problem), problem
        return True

    def poll(self) -> Plan | None:
        """Return the plan that was started; None until it is made. ExecutionError where planning failed."""
        if self._planning is None:
            return None
        planning, problem = self._planning
        plan = planning.result()
        if plan is not None:
            _logger.info("planned %.3g s a step, at least %.3g s", plan.makespan_s, plan.lower_bound_s)
            self._end_planning()
            self.plans.append(MadePlan(plan, problem))
        return plan

    def close(self) -> None:
        """End the planning process and the engine's threads; closing again does nothing."""
        self._end_planning()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _end_planning(self) -> None:
        if self._planning is not None:
            self._planning[0].close()
            self._planning = None

    def _engine_for(self, step: Probe | Try) -> PlanEngine:
        plan = self._plan_of(step)
        if self._engine is not None and self._engine.plan is plan:
            return self._engine
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._engine = open_engine(self._captured, plan, self._machine)
        return_free_memory()
        return self._engine

    def _plan_of(self, step: Probe | Try) -> Plan:
        if isinstance(step, Try):
            return self.plans[step.plan].plan
        if step not in self._probes:
            self._probes[step] = sequential(self._captured.graph, self._machine, step.case)
        return self._probes[step]
