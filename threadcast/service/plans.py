"""POST /v1/plans: cores, threads and order for every op of a graph; GET /v1/plans/{name}: an earlier plan."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from apiflask import APIBlueprint
from flask import Response

from threadcast import __version__
from threadcast.core import Machine, OpGraph, Plan
from threadcast.core.errors import PlanError
from threadcast.scheduler.policies import Problem as PlanProblem
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.service import formats, planners
from threadcast.service.answers import Example, answer
from threadcast.service.conditional import etag_of
from threadcast.service.context import context
from threadcast.service.deadlines import deadline
from threadcast.service.planning import about_problem, check_policy, read_problem
from threadcast.service.point_sources import PointSources
from threadcast.service.problems import Problem
from threadcast.service.request_marks import timed
from threadcast.service.schemas import PlanRequest

ROUNDING = 1e-9
"""Share of an op's finish up to which its time may differ from that of the curve, of which it is a rounded sum."""

blueprint = APIBlueprint("plans", __name__, url_prefix="/v1")

_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
         "description": "as in an answer's Content-Location"}  # fmt: skip

EXAMPLE: dict[str, Any] = {
    "cores": 2,
    "graph": {
        "schema": "threadcast.graph/1",
        "ops": [
            {"id": "left", "kind": "mm", "curve": {"1": 0.004, "2": 0.0025}},
            {"id": "right", "kind": "mm", "curve": {"1": 0.003, "2": 0.002}},
            {"id": "sum", "kind": "add", "curve": {"1": 0.001, "2": 0.0008}},
        ],
        "edges": [["left", "sum"], ["right", "sum"]],
    },
}
"""A graph with curves, on two cores."""


def _example_name() -> str:
    graph, machine = OpGraph.from_json(EXAMPLE["graph"]), Machine.uniform("cores", 2)
    return _name(PlanProblem(graph, curves_of(graph, machine), machine), "auto", {})


_AFTER = Example(
    path={"name": _example_name}, status=404, until="the example of POST /v1/plans was sent", then=200
)  # fmt: skip


@blueprint.post("/plans")
@blueprint.input(PlanRequest, arg_name="asked")
@blueprint.doc(
    extensions=answer(
        formats.Plan, "The plan, with its distance from the best possible one.", tagged=True,
        headers=("Content-Location",), problems=(404,), reads=("X-Deadline-S",), scope="read",
        example=Example(EXAMPLE),
    )
)  # fmt: skip
def make_plan(asked: PlanRequest) -> Response:
    """Plan a graph on some cores

    With curves in the graph no model is needed; without, the model predicts them. The plan says where its curves
    came from in `curves_from`, and for each op what its time is in `source`. It is stored for a while at
    Content-Location: asked again, with the same curves, it is not made again.
    """
    policy = asked.policy or "auto"
    check_policy(policy, asked.options)
    here = context()
    until = deadline(here.settings.deadline_s)
    with timed("model"):
        problem = read_problem(asked.graph, asked, here)
    name = _name(problem, policy, asked.options)
    text = here.store.plan(name)
    if text is None:
        with timed("plan"):
            plan = planners.made(problem, policy, asked.options, until, most=here.settings.max_planners)
        text = json.dumps(described(plan, problem), separators=(",", ":"))
        about = {**about_problem(problem, asked.graph, policy), "forecast_s": plan.makespan_s}
        here.store.add_plan(name, text, most=here.settings.max_kept_plans, about=about)
    response = _answer(text)
    response.headers["Content-Location"] = f"/v1/plans/{name}"
    return response


@blueprint.get("/plans/<name>")
@blueprint.doc(extensions=answer(formats.Plan, "The plan.", problems=(404,), parameters=[_NAME], example=_AFTER))
def kept_plan(name: str) -> Response:
    """Show a plan that was made before"""
    text = context().store.plan(name)
    if text is None:
        raise Problem(404, "no such plan is stored (any more); make it again", pointer="/name", where="path")
    return _answer(text)


def described(plan: Plan, problem: PlanProblem) -> dict[str, Any]:
    """Return the document of a plan; each op has the source of its time, "extrapolated" where it shares cores."""
    document, sources = plan.to_json(), PointSources(problem)
    positions = {op_id: i for i, op_id in enumerate(problem.graph.ids)}
    for op, placed in zip(document["ops"], plan.ops, strict=True):
        try:
            where = positions[placed.id], placed.cores, placed.threads
            off_s = abs(placed.duration_s - problem.times.on(*where))
            op["source"] = "extrapolated" if off_s > ROUNDING * placed.finish_s else sources.of(*where)
        except PlanError:  # the policy computed the time, for a case that the curve lacks
            op["source"] = "extrapolated"
    return document


def _answer(text: str) -> Response:
    content = text.encode()
    headers = {"ETag": etag_of(content), "Cache-Control": "no-cache"}
    return Response(content, headers=headers, content_type="application/json")


def _name(problem: PlanProblem, policy: str, options: dict[str, Any]) -> str:
    """Return the name of the plan: a digest of its graph, curves, machine, policy and options."""
    curves = problem.curves
    asked = [__version__, problem.graph.to_json(), problem.machine.to_json(), policy, options, curves.model]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for array in (curves.seconds, curves.low, curves.high, curves.source):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
