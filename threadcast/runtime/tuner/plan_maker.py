"""Makes plans for one captured graph: runs the steps that measure its operators, and starts the planner."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, CurveTable, Machine, Plan, Trace
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.library import return_free_memory
from threadcast.runtime.plans.curves_in_step import (
    MOST_STEPS,
    WARM_UP,
    LookSchedule,
    curves_in_step,
    curves_side_by_side,
    seconds_in_step,
)
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Answer, Question
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.tuner.plan_search import Look, Try
from threadcast.runtime.tuner.planning import Asked, Planner
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE

PLANNING_S = 0.2
"""Time budget in seconds of the search for a plan, which takes cores from the steps meanwhile. A convention."""

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True, eq=False)
class SolvedProblem:
    """A problem, and the plan that the planner found for it."""

    plan: Plan
    problem: Problem


class PlanMaker:
    """Makes plans of `captured` for `machine`, from the traces of the steps that a `PlanSearch` asks for.

    Each of these is a whole step of the caller. `planner` makes the plans. `store` is the URL of a store of what is
    known of operators on this machine; None: nothing is known. `before` is called before each step and sets the memory
    format of the model's tensors, which other calls of the same model may have changed.
    """

    def __init__(
        self, captured: Captured, machine: Machine, *, planner: Planner, store: str | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.plans: list[SolvedProblem] = []
        """All plans so far, in the order in which they were made."""
        self.captured, self._machine, self._before, self._planner = captured, machine, before, planner
        self._schedule, self._store = LookSchedule.of(machine), store
        self._cases: list[Case | tuple[Case, ...]] = list(self._schedule.cases)
        """For each look, the case of all ops, or the case of each op in the graph's order."""
        self._traces: dict[Look | Try, deque[Trace]] = {}
        """Traces of the latest steps of each look and trial. The first step, which warms up, drops out."""
        self._looks: dict[Look, Plan] = {}
        self._alone: CurveTable | None = None
        """The curves of operators that run alone, by which the first plan was made."""
        self._looked = 0
        """Number of looks that there were when a plan was asked for last; corrected plans do not count."""
        self._asked: Asked | None = None
        """What was asked last, until there is an answer."""
        self._correcting = False
        self.engine: Engine | None = None
        """The engine that ran the last step; None before the first step and once closed."""
        self._tried: dict[Try, Engine] = {}
        """The engines that have tried plans; they stay open, as one may be kept."""

    def prepare(self, step: Look | Try, *, goes_on: bool) -> None:
        """Open the engine for `step`, which must then be the next one. Where this raises, no step has begun.

        Unless the look or trial `goes_on` from the step before, what earlier steps of it have shown is forgotten.
        """
        if not goes_on:
            self._traces.pop(step, None)
        self._engine_for(step)

    def run(self, step: Look | Try, *arguments: Any) -> tuple[Any, float]:
        """Run one step; return its result and its makespan in seconds."""
        self._before()
        inputs = self.captured.bind(*arguments)
        result, trace = self._engine_for(step).run_traced(inputs)
        traces = self._traces.setdefault(step, deque(maxlen=MOST_STEPS + WARM_UP))
        traces.append(trace)
        return self.captured.finish(result, inputs), trace.makespan_s

    def start_planning(self) -> bool:
        """Start making a plan from all steps so far; return False where they would not change the last plan."""
        looks = [step for step in self._traces if isinstance(step, Look)]
        if self._alone is not None and len(looks) == self._looked and self._traces.keys() & {Try(len(self.plans) - 1)}:
            curves = curves_side_by_side(self._alone, self.captured.graph, self._warm(Try(len(self.plans) - 1)))
            if curves is self._alone:
                return False
            self._correcting = True
            self._ask(curves=curves)
            return True
        self._correcting = False
        self._looked, complete = len(looks), len(self._cases) == len(self._schedule.cases)
        if complete and looks and self._schedule.most == self._schedule.uniform:
            traces = {case: self._warm(look) for look, case in zip(looks, self._schedule.cases, strict=True)}
            self._ask(curves=curves_in_step(self.captured.graph, traces), observed=self._observed(looks))
        else:
            self._ask(observed=self._observed(looks), looks=0 < len(looks) < self._schedule.most)
        return True

    def poll(self) -> Answer | None:
        """Return the answer to `start_planning`; None until there is one. ExecutionError where planning failed.

        `accept` a plan before it is tried. A look is one more look to take.
        """
        answer = None if self._asked is None else self._planner.answer(self._asked)
        if answer is None:
            return None
        self._asked = None
        if answer.look is not None:
            self._cases.append(answer.look)
        return answer

    def accept(self, answer: Answer) -> None:
        """Take the plan of an answer for the next one."""
        assert answer.plan is not None
        assert answer.curves is not None
        _logger.info("planned %.3g s a step, at least %.3g s", answer.plan.makespan_s, answer.plan.lower_bound_s)
        if not self._correcting:
            self._alone = answer.curves
        problem = Problem(self.captured.graph, NATIVE_ENGINE.added(answer.curves), self._machine)
        self.plans.append(SolvedProblem(answer.plan, problem))

    def _ask(
        self, *, curves: CurveTable | None = None, observed: Mapping[str, Observed] = MappingProxyType({}),
        looks: bool = False,
    ) -> None:  # fmt: skip
        self._asked = self._planner.ask(Question(
            self.captured.graph, self._machine, NATIVE_ENGINE, observed, self._store, looks,
            curves, {"budget_s": PLANNING_S},
        ))  # fmt: skip

    @property
    def observed(self) -> Mapping[str, Observed]:
        """What all looks so far show of each distinct op, by key: seconds of each of some steps, by case."""
        return self._observed([step for step in self._traces if isinstance(step, Look)])

    def _observed(self, looks: Sequence[Look]) -> dict[str, dict[Case, list[float]]]:
        """What the looks show of each distinct op, by key and case."""
        found: dict[str, dict[Case, list[float]]] = {}
        for look in looks:
            cases = self._cases[look.number]
            of_op = [cases] * len(self.captured.graph) if isinstance(cases, Case) else cases
            for trace in self._warm(look):
                for op, case, seconds in zip(
                    self.captured.graph.ops, of_op, seconds_in_step(self.captured.graph, trace), strict=True
                ):
                    found.setdefault(op.key, {}).setdefault(case, []).append(seconds)
        return found

    def handed_over(self, number: int) -> Engine | None:
        """Return the open engine that has tried plan `number`, which `close` then leaves open; None if it has none."""
        engine = self._tried.pop(Try(number), None)
        if engine is self.engine:
            self.engine = None
        return engine

    def close(self) -> None:
        """End the engines' threads, and give up the plan that is being made; closing again does nothing."""
        if self._asked is not None:
            self._planner.give_up(self._asked)
            self._asked = None
        if self.engine is not None and self.engine not in self._tried.values():
            self.engine.close()
        for engine in self._tried.values():
            engine.close()
        self._tried.clear()
        self.engine = None

    def _warm(self, step: Look | Try) -> list[Trace]:
        """The traces of a look or trial without those that warm up."""
        return list(self._traces[step])[WARM_UP:]

    def _engine_for(self, step: Look | Try) -> Engine:
        plan = self._plan_of(step)
        if self.engine is not None and self.engine.plan is plan:
            return self.engine
        if self.engine is not None and self.engine not in self._tried.values():
            self.engine.close()
            self.engine = None
        self.engine = self._tried[step] if isinstance(step, Try) and step in self._tried else self._opened(plan)
        if isinstance(step, Try):
            self._tried[step] = self.engine
        return self.engine

    def _opened(self, plan: Plan) -> Engine:
        engine = Engine(self.captured, plan, self._machine)
        return_free_memory()
        return engine

    def _plan_of(self, step: Look | Try) -> Plan:
        if isinstance(step, Try):
            return self.plans[step.plan].plan
        if step not in self._looks:
            self._looks[step] = sequential(self.captured.graph, self._machine, self._cases[step.number])
        return self._looks[step]
