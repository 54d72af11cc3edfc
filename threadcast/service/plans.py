"""POST /v1/plans: cores, threads and order for every op of a graph."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from threadcast.core.errors import FormatError
from threadcast.scheduler import planner
from threadcast.service.context import context, reply
from threadcast.service.formats import answers
from threadcast.service.planning import check_policy, read_problem, refused_options
from threadcast.service.schemas import PlanRequest

AUTO = "auto"
"""The planner's own choice among the policies."""

blueprint = APIBlueprint("plans", __name__, url_prefix="/v1")


@blueprint.post("/plans")
@blueprint.input(PlanRequest, arg_name="asked")
@blueprint.doc(responses=answers("Plan", "The plan, with its distance from the best possible one."))
def make_plan(asked: PlanRequest) -> Response:
    """Plan a graph on some cores

    With curves in the graph no model is needed; without, the model predicts them. The plan says where its curves
    came from in `curves_from`.
    """
    policy = asked.policy or AUTO
    check_policy(policy, asked.options, more=(AUTO,))
    if asked.options and policy == AUTO:
        raise FormatError("options go to a policy; name one", pointer="/options")
    problem = read_problem(asked.graph, asked, context())
    try:
        made = planner.plan(problem, policy=policy, **asked.options)
    except (TypeError, ValueError) as error:
        raise refused_options(error, asked.options) from error
    return reply(made.to_json())
