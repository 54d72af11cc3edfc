"""What every request handler works with: the settings, the store, the models and the metrics of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from flask import Response, current_app

from threadcast.core import Machine
from threadcast.core.errors import NotFound
from threadcast.models.base import PerformanceModel
from threadcast.prediction.predictor import LocalPredictor
from threadcast.service.kept_curves import KeptCurves
from threadcast.service.kept_policies import KeptPolicies
from threadcast.service.known import Known
from threadcast.service.metrics import Metrics
from threadcast.service.model_shelf import ModelShelf
from threadcast.service.problems import Problem, Where
from threadcast.service.readiness import ReadinessProbe
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

EXTENSION = "threadcast"


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one app; all of them are safe to use from threads."""

    settings: ServiceSettings
    store: Store
    models: ModelShelf
    metrics: Metrics
    policies: KeptPolicies
    readiness: ReadinessProbe
    known: Known
    curves: KeptCurves

    def predictor(self, machine: Machine, model: str | None = None) -> LocalPredictor:
        """A predictor over what the store holds now; NotFound when there is no such model."""
        loaded, version = self.models.get(model)
        return self.predictor_with(loaded, machine, version)

    def predictor_with(self, loaded: PerformanceModel, machine: Machine, version: str) -> LocalPredictor:
        """A predictor with a model that `models` gave."""
        return LocalPredictor(loaded, machine, self.known, version=version)

    def predictor_asked_for(self, machine: Machine, model: str | None) -> LocalPredictor:
        """As `predictor`, for a request: a problem that points to /model, or says that the default is missing."""
        return self.predictor_with(*self.model_asked_for(model, machine))

    def model_asked_for(
        self, model: str | None, machine: Machine, *, where: Where = "body"
    ) -> tuple[PerformanceModel, Machine, str]:
        """What `predictor_with` takes, for a request: a problem as `predictor_asked_for` says."""
        try:
            loaded, version = self.models.get(model)
        except NotFound as error:
            if model is None:
                raise Problem(503, f"no model is registered as {self.models.default!r}, the default") from error
            raise Problem(404, f"no model is registered as {model[:80]!r}", pointer="/model", where=where) from error
        return loaded, machine, version


def context() -> Context:
    """The context of the app that handles the current request."""
    return cast(Context, current_app.extensions[EXTENSION])


def reply(document: Any, status: int = 200) -> Response:
    """`document` as a JSON answer."""
    response = cast(Response, current_app.json.response(document))
    response.status_code = status
    return response
