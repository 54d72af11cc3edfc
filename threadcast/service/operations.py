"""What those who run the service ask: is it alive, can it answer, what are its limits, how is it doing."""

from __future__ import annotations

from typing import Any

from apiflask import APIBlueprint
from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST

from threadcast import __version__
from threadcast.core import Machine, Op, TensorSpec
from threadcast.core.errors import ModelError, ThreadcastError
from threadcast.scheduler.policies import names
from threadcast.service.context import Context, context, reply
from threadcast.service.formats import answers
from threadcast.service.problems import Problem

GOLDEN_OP = Op("mm", (TensorSpec((256, 256)), TensorSpec((256, 256))), outputs=(TensorSpec((256, 256)),))
"""Predicted for readiness where nothing was measured yet; large enough to be an ordinary op."""

blueprint = APIBlueprint("operations", __name__)

_METRICS: dict[int | str, Any] = {
    200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@blueprint.get("/health/live")
@blueprint.doc(responses=answers("Health", "The process answers."))
def live() -> Response:
    """Say that the process is alive"""
    return reply({"status": "live"})


@blueprint.get("/health/ready")
@blueprint.doc(responses=answers("Health", "A golden prediction was made with the default model and the store."))
def ready() -> Response:
    """Say whether predictions can be made

    Makes one: a measured op if there is one, on its machine, through the store and the default model.
    """
    try:
        model = golden_prediction(context())
    except ThreadcastError as error:
        raise Problem(503, f"the golden prediction failed: {type(error).__name__}; see the server's log") from error
    return reply({"status": "ready", "model": model})


def golden_prediction(here: Context) -> str:
    """Predict an op through the store and the default model; the "name@version" that answered.

    Takes the first measured op, on the first machine that the model knows. ModelError when it knows none of them;
    while nothing is measured it may know none. Raises whatever goes wrong otherwise.
    """
    measured = here.store.ops()[:1]
    machines = here.store.machines()
    refused: ModelError | None = None
    for machine in machines or [Machine.uniform("golden", 2)]:
        predictor = here.predictor(machine)
        try:
            predictor.curves(measured or [GOLDEN_OP])
        except ModelError as error:
            refused = error
        else:
            return predictor.version
    if machines and refused is not None:
        raise refused
    return predictor.version


@blueprint.get("/v1/info")
@blueprint.doc(responses=answers("Info", "What this service is and allows."))
def info() -> Response:
    """Describe the service: version, limits with their units, policies, the default model"""
    here = context()
    return reply({
        "version": __version__,
        "limits": here.settings.limits(),
        "policies": ["auto", *names()],
        "default_model": here.models.default,
        "formats": ["threadcast.graph/1", "threadcast.plan/1"],
    })  # fmt: skip


@blueprint.get("/metrics")
@blueprint.doc(responses=_METRICS)
def metrics() -> Response:
    """Show Prometheus metrics, of all worker processes together"""
    return Response(context().metrics.text(), content_type=CONTENT_TYPE_LATEST)
