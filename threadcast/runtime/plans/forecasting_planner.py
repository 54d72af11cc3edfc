"""A planner's process that also forecasts: it takes questions of `step_forecasts` and makes plans from its answers.

As a script this module is the process. Questions and answers are JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from threadcast.core import Affinity, Case, Edge, Machine, Op, OpGraph, Plan
from threadcast.core.curve_codec import from_codes, to_codes
from threadcast.runtime.plans.step_forecasts import Answer, Question, answered
from threadcast.scheduler.planner_process import PlannerProcess, serve
from threadcast.scheduler.problem.engine_costs import EngineCosts

_logger = logging.getLogger("threadcast")


class ForecastingPlanner(PlannerProcess):
    """A process that answers one question at a time. Use and close it as a `PlannerProcess`."""

    module = __name__

    def ask_forecast(self, question: Question) -> None:
        """Start finding the answer; returns at once."""
        self._send(json.dumps(_document(question)).encode())

    def forecast(self, timeout_s: float = 0.0) -> Answer | None:
        """Return the answer to the last question; None where there is none within `timeout_s` seconds.

        Errors as those of `PlannerProcess.result`.
        """
        found = self._received(timeout_s)
        return None if found is None else _answer_of(found)


def _pairs(cases: Mapping[Case, Any]) -> list[tuple[int, str, Any]]:
    return [(case.threads, case.affinity.value, value) for case, value in cases.items()]


def _document(question: Question) -> dict[str, Any]:
    graph = question.graph
    distinct = {op.key: op for op in graph.ops}
    number = {key: i for i, key in enumerate(distinct)}
    return {
        "ids": graph.ids, "ops": [number[op.key] for op in graph.ops], "edges": graph.edges,
        "distinct": [op.to_json() for op in distinct.values()], "machine": question.machine.to_json(),
        "observed": {key: _pairs(observed) for key, observed in question.observed.items()},
        "costs": [question.costs.op_s, question.costs.team_s], "store": question.store,
        "looks": question.looks, "curves": None if question.curves is None else to_codes(question.curves),
        "options": dict(question.options),
    }  # fmt: skip


def _question_of(document: Mapping[str, Any]) -> Question:
    distinct = [Op.from_json(op, pointer="") for op in document["distinct"]]
    ops = tuple(distinct[i] for i in document["ops"])
    graph = OpGraph(tuple(document["ids"]), ops, tuple(Edge(*edge) for edge in document["edges"]))
    observed = {
        key: {Case(threads, Affinity(affinity)): seconds for threads, affinity, seconds in of_op}
        for key, of_op in document["observed"].items()
    }
    return Question(
        graph, Machine.from_json(document["machine"]), EngineCosts(*document["costs"]), observed, document["store"],
        document["looks"],
        None if document["curves"] is None else from_codes(document["curves"]), document["options"],
    )  # fmt: skip


def _answer_of(document: Mapping[str, Any]) -> Answer:
    plan, curves, look = document["plan"], document["curves"], document["look"]
    return Answer(
        None if plan is None else Plan.from_json(plan), None if curves is None else from_codes(curves),
        document["pessimistic_s"],
        None if look is None else tuple(Case(threads, Affinity(affinity)) for threads, affinity in look),
    )  # fmt: skip


def _answer(message: bytes) -> dict[str, Any]:
    found = answered(_question_of(json.loads(message)))
    return {
        "plan": None if found.plan is None else found.plan.to_json(),
        "curves": None if found.curves is None else to_codes(found.curves),
        "pessimistic_s": found.pessimistic_s,
        "look": None if found.look is None else [(case.threads, case.affinity.value) for case in found.look],
    }  # fmt: skip


if __name__ == "__main__":
    serve(_answer)
