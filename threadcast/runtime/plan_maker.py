"""A plan for one captured graph, made from the caller's own steps: measured, planned, corrected by what happened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import Case, Machine, Plan, Trace
from threadcast.runtime.comparison import sequential
from threadcast.runtime.engines import engine_costs, open_engine
from threadcast.runtime.in_step import STEPS, WARM_UP, as_seen, curves_in_step, probe_cases
from threadcast.runtime.native.library import return_free_memory
from threadcast.runtime.planning import Planning
from threadcast.scheduler.policies import Problem

_logger = logging.getLogger("threadcast")

CLOSE = 0.05
"""Share by which steps may differ from what a plan says of them before it is made anew, and by which of two plans the
better-informed one may be slower: medians of a few steps are no better than that."""
MOST_PLANS = 4

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A plan, what it was made of, and the seconds that its traced steps took."""

    plan: Plan
    problem: Problem
    step_s: float


class PlanMaker:
    """Makes plans of `captured` for `machine`. Every step that it takes is a whole one of the caller's.

    `before` is called before each: other calls of the same model may have changed how its tensors lie in memory.
    """

    def __init__(self, captured: Captured, machine: Machine, *, before: Callable[[], None]) -> None:
        self._captured, self._machine, self._before = captured, machine, before

    def made(self) -> Generator[Run, None, Made]:
        """Measure every op at several thread counts, plan, run the plan, and plan again with what it showed.

        Side by side ops are slower than alone, by what they share; how much is only seen when they are. This ends once
        a plan takes as long as it says.
        """
        graph = self._captured.graph
        traces: dict[Case, list[Trace]] = {}
        for case in probe_cases(self._machine):
            traces[case] = []
            yield from self._traced(sequential(graph, self._machine, case), traces[case])
        fastest = min(traces, key=lambda case: _makespan_s(traces[case]))
        curves = alone = curves_in_step(graph, traces)
        meanwhile = sequential(graph, self._machine, fastest)
        made: list[Made] = []
        for _ in range(MOST_PLANS):
            problem = Problem(graph, engine_costs().added(curves), self._machine)
            plan = yield from self._planned(problem, meanwhile)
            seen: list[Trace] = []
            yield from self._traced(plan, seen)
            made.append(Made(plan, problem, _makespan_s(seen)))
            _logger.info("a step by this plan takes %.3g s", made[-1].step_s)
            if abs(made[-1].step_s - plan.makespan_s) <= CLOSE * made[-1].step_s:
                break
            curves, meanwhile = as_seen(alone, graph, seen), plan
            if curves is alone:
                break
        least_s = min(one.step_s for one in made)
        return next(one for one in reversed(made) if one.step_s <= (1 + CLOSE) * least_s)

    def _traced(self, plan: Plan, traces: list[Trace]) -> Generator[Run]:
        """Steps by `plan`; the traces of the warm ones go to `traces`."""
        with open_engine(self._captured, plan, self._machine) as engine:

            def run(*arguments: Any) -> Any:
                self._before()
                result, trace = engine.run_traced(self._captured.bind(*arguments))
                traces.append(trace)
                return result

            return_free_memory()
            for _ in range(WARM_UP + STEPS):
                yield run
        del traces[:WARM_UP]

    def _planned(self, problem: Problem, meanwhile: Plan) -> Generator[Run, None, Plan]:
        """A plan of `problem`; until it is made, steps by another."""
        with (
            closing(Planning(problem)) as planning,
            open_engine(self._captured, meanwhile, self._machine) as engine,
        ):

            def run(*arguments: Any) -> Any:
                self._before()
                return engine.run(self._captured.bind(*arguments))

            return_free_memory()
            while (plan := planning.result()) is None:
                yield run
        _logger.info("planned %.3g s a step, at least %.3g s", plan.makespan_s, plan.lower_bound_s)
        return plan


def _makespan_s(traces: list[Trace]) -> float:
    return median(trace.makespan_s for trace in traces)
