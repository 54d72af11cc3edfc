"""A plan for one captured graph, made from the caller's own steps: measured, planned, corrected by what happened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from statistics import median
from typing import Any

from threadcast.collector.capture import Captured
from threadcast.core import Case, CurveTable, Machine, Plan, Trace
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.runtime.comparison import sequential
from threadcast.scheduler.runtime.engines import engine_costs, open_engine
from threadcast.scheduler.runtime.in_step import STEPS, WARM_UP, curves_in_step, probe_cases, slowed_beside_others
from threadcast.scheduler.runtime.native.library import return_free_memory
from threadcast.scheduler.runtime.planning import Planning

_logger = logging.getLogger("threadcast")

Run = Callable[..., Any]
Steps = Generator[Run, None, Plan]
"""Yields what runs each of the caller's next steps, and returns a plan."""


class PlanMaker:
    """Makes plans of `captured` for `machine`. Every step that it takes is a whole one of the caller's.

    `before` is called before each: other calls of the same model may have changed how its tensors lie in memory.
    """

    def __init__(self, captured: Captured, machine: Machine, *, before: Callable[[], None]) -> None:
        self._captured, self._machine, self._before = captured, machine, before

    def made(self) -> Steps:
        """Measure every op at several thread counts, plan, run the plan, and plan again with what it showed.

        Side by side ops are slower than alone, by what they share; how much is only seen when they are.
        """
        traces: dict[Case, list[Trace]] = {}
        for case in probe_cases(self._machine):
            traces[case] = []
            yield from self._traced(sequential(self._captured.graph, self._machine, case), traces[case])
        fastest = min(traces, key=lambda case: median(trace.makespan_s for trace in traces[case]))
        alone = curves_in_step(self._captured.graph, traces)
        first = yield from self._planned(alone, sequential(self._captured.graph, self._machine, fastest))
        if all(op.threads == len(self._machine) for op in first.ops):
            return first
        seen: list[Trace] = []
        yield from self._traced(first, seen)
        return (yield from self._planned(slowed_beside_others(alone, self._captured.graph, seen), first))

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

    def _planned(self, curves: CurveTable, meanwhile: Plan) -> Steps:
        """The plan for these curves; until it is made, steps by another."""
        problem = Problem(self._captured.graph, engine_costs().added(curves), self._machine)
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
