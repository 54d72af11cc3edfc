"""Routes to operate the service: health checks, limits and metrics."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST

from threadcast import __version__
from threadcast.core.errors import ThreadcastError
from threadcast.scheduler.policies import plan_names
from threadcast.service import planners
from threadcast.service.answer_formats import Health, Info
from threadcast.service.answers import answer
from threadcast.service.context import context, reply
from threadcast.service.problems import unexpected
from threadcast.service.readiness import predict_one

blueprint = APIBlueprint("operations", __name__)


@blueprint.get("/health/live")
@blueprint.doc(extensions=answer(Health, "The process answers."))
def live() -> Response:
    """Say that the process is alive"""
    return reply({"status": "live"})


@blueprint.get("/health/ready")
@blueprint.doc(extensions=answer(Health, "The readiness probe predicted an op with the default model and the store."))
def ready() -> Response:
    """Say whether predictions can be made

    Makes one: a measured op if there is one, on its machine, through the store and the default model. Plans can be
    asked for too: while `planner` is compiling, once after an install or an upgrade, they wait until it is ready.
    """
    here = context()
    try:
        model = predict_one(here.store, here.predictor)
    except ThreadcastError as error:
        return unexpected(error, 503, "the readiness probe failed")
    return reply({
        "status": "ready", "model": model, "planner": "compiling" if planners.compilation.is_running else "ready"
    })  # fmt: skip


@blueprint.get("/v1/info")
@blueprint.doc(extensions=answer(Info, "What this service is and allows."))
def info() -> Response:
    """Describe the service: version, limits with their units, policies, the default model"""
    here = context()
    return reply({
        "version": __version__,
        "limits": here.settings.limits(),
        "policies": plan_names(),
        "default_model": here.models.default,
        "formats": ["threadcast.graph/1", "threadcast.plan/1"],
    })  # fmt: skip


@blueprint.get("/metrics")
@blueprint.doc(extensions=answer(None, "Prometheus' text format.", forms=("text/plain",)))
def metrics() -> Response:
    """Show Prometheus metrics, of all worker processes together"""
    return Response(context().metrics.text(), content_type=CONTENT_TYPE_LATEST)
