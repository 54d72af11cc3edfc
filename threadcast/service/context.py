"""The objects that request handlers share: settings, store, models, caches and metrics of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from flask import Response, current_app

from threadcast.core import Machine
from threadcast.core.errors import NotFound
from threadcast.models.base import PerformanceModel
from threadcast.models.untrained import VERSION
from threadcast.prediction.gathering import Gathering
from threadcast.prediction.lru_cache import LruCache
from threadcast.prediction.predictor import LocalPredictor
from threadcast.service.adapted_models import AdaptedModels
from threadcast.service.curve_responses import CurveId, CurveResponse
from threadcast.service.decision_contexts import DecisionContexts
from threadcast.service.metrics import Metrics
from threadcast.service.model_shelf import MOST_CASES, PRIOR, ModelShelf
from threadcast.service.problems import Problem, Where
from threadcast.service.settings import ServiceSettings
from threadcast.service.stored_documents import StoredDocuments
from threadcast.store import Store

EXTENSION = "threadcast"


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one app, all of them safe to use from threads."""

    settings: ServiceSettings
    store: Store
    models: ModelShelf
    metrics: Metrics
    decision_contexts: DecisionContexts
    stored: StoredDocuments
    curve_responses: LruCache[CurveId, CurveResponse]
    adapted: AdaptedModels
    gathering: Gathering = field(default_factory=Gathering)

    def predictor(self, machine: Machine, model: str | None = None) -> LocalPredictor:
        """Return a predictor that uses the model and the stored measurements; NotFound when there is no such model."""
        loaded, version = self.models.get(model)
        return self.predictor_with(loaded, machine, version)

    def predictor_with(self, loaded: PerformanceModel, machine: Machine, version: str) -> LocalPredictor:
        """Return a predictor with a loaded model and its version, as `models.get` returns them."""

        def adapted(model: PerformanceModel, named: str) -> PerformanceModel:
            return self.adapted.of(model, named, machine).model

        return LocalPredictor(  # it lives for a request
            adapted(loaded, version), machine, self.stored, version=version, most_points=0, gathering=self.gathering,
            otherwise=partial(adapted, PRIOR, VERSION) if len(machine.cases()) <= MOST_CASES else None,
        )  # fmt: skip

    def predictor_asked_for(self, machine: Machine, model: str | None) -> LocalPredictor:
        """As `predictor`, but raise a Problem for an unknown model: 404 at /model, or 503 if it is the default."""
        return self.predictor_with(*self.model_asked_for(model, machine))

    def model_asked_for(
        self, model: str | None, machine: Machine, *, where: Where = "body"
    ) -> tuple[PerformanceModel, Machine, str]:
        """Return the arguments of `predictor_with`; raises a Problem as `predictor_asked_for` does."""
        try:
            loaded, version = self.models.get(model)
        except NotFound as error:
            if model is None:
                raise Problem(503, f"no model is registered as {self.models.default!r}, the default") from error
            raise Problem(404, f"no model is registered as {model[:80]!r}", pointer="/model", where=where) from error
        if loaded is PRIOR and (cases := len(machine.cases())) > MOST_CASES:
            raise Problem(
                422, f"{version} forecasts machines of at most {MOST_CASES} cases, not {cases}; register a model",
                pointer="/machine", where=where,
            )  # fmt: skip
        return loaded, machine, version


def context() -> Context:
    """Return the context of the app that handles the current request."""
    return cast(Context, current_app.extensions[EXTENSION])


def reply(document: Any, status: int = 200) -> Response:
    """Return `document` as a JSON response."""
    response = cast(Response, current_app.json.response(document))
    response.status_code = status
    return response
