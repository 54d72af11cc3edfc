"""Puts the service together: `create_app(settings)` is the whole WSGI application."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from apiflask import APIFlask
from flask import Flask, Request, Response
from flask.sessions import NullSession, SessionInterface, SessionMixin

from threadcast import __version__
from threadcast.prediction.lru_cache import LruCache
from threadcast.service import (
    api_description,
    auth,
    conditional,
    curves,
    dashboard,
    decisions,
    in_flight,
    machines,
    measurements,
    metrics,
    models,
    operations,
    pages,
    plans,
    predictions,
    problems,
    rate_limits,
    request_marks,
)
from threadcast.service.adapted_models import AdaptedModels
from threadcast.service.context import EXTENSION, Context
from threadcast.service.decision_contexts import DecisionContexts
from threadcast.service.key_paths import KeyConverter
from threadcast.service.model_shelf import ModelShelf
from threadcast.service.settings import ServiceSettings
from threadcast.service.stored_documents import StoredDocuments
from threadcast.service.strict_json import JsonRequest, StrictJson, require_json
from threadcast.service.trusted_proxies import TrustedProxies, networks_of
from threadcast.store import Store

_BLUEPRINTS = (predictions, plans, decisions, machines, measurements, curves, models, operations, dashboard, pages)


class _NoSessions(SessionInterface):
    """Nothing is kept of a browser; Flask's own interface would look for a secret key at each request."""

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return _NO_SESSION

    def save_session(self, app: Flask, session: SessionMixin, response: Response) -> None:
        """Nothing."""


_NO_SESSION = NullSession()


class Service(APIFlask):
    """The WSGI application, with strict JSON in and out."""

    session_interface = _NoSessions()

    request_class = JsonRequest
    json_provider_class = StrictJson

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """`func` unchanged: no handler here is a coroutine, and Flask would check for that a dozen times a request."""
        return func


LEAST_WAIT_S = 1.0
"""Shortest wait for others' transactions, in seconds, however short the deadline is: storing to a slow disk takes some
tenths."""


def create_app(settings: ServiceSettings) -> Service:
    """Return the application for the store and the models that `settings` name.

    The store is opened, and created where there is none; models are loaded when they are first needed. Create the
    application after a fork: database connections and thread pools do not survive one. StoreError when the store cannot
    be opened, ConfigError for a file that is not a key file. Close it with
    `app.extensions["threadcast"].store.close()`.
    """
    app = Service(__name__, title="threadcast", version=__version__, docs_path=None, json_errors=False)
    app.config.update(
        MAX_CONTENT_LENGTH=settings.max_body_bytes, MAX_VALUES=settings.max_body_values,
        DEADLINE_S=settings.deadline_s,
        DESCRIPTION="Forecasts how long every operation of a network takes at every thread count, and plans with it.",
        AUTO_SERVERS=False, AUTO_TAGS=False, AUTO_OPERATION_ID=True, AUTO_404_RESPONSE=False,
        AUTO_VALIDATION_ERROR_RESPONSE=False,
    )  # fmt: skip
    app.url_map.converters["key"] = KeyConverter
    app.jinja_options = {"trim_blocks": True, "lstrip_blocks": True}
    measured = metrics.Metrics(multiprocess_dir=os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
    store = Store.open(settings.store, wait_s=max(LEAST_WAIT_S, settings.deadline_s))
    stored = StoredDocuments(store)
    app.extensions[EXTENSION] = Context(
        settings, store,
        ModelShelf(
            settings.models, default=settings.model, untrained=settings.untrained, moved=measured.moved,
            failed=lambda alias: measured.load_failures.labels(alias).inc(),
        ),
        measured,
        DecisionContexts(store, most_here=settings.max_contexts, most_kept=settings.max_kept_contexts),
        stored,
        LruCache(settings.max_kept_curves),
        AdaptedModels(store, stored.last_measurement),
    )  # fmt: skip
    request_marks.install(app)  # the part that is installed first handles an answer last
    conditional.install(app)
    metrics.install(app, measured)
    problems.install(app)
    auth.install(app, settings)
    rate_limits.install(app, settings, measured)
    in_flight.install(app, in_flight.Places(settings.max_in_flight, settings.max_in_flight_per_key))
    app.before_request(require_json)
    for module in _BLUEPRINTS:
        app.register_blueprint(module.blueprint)
    app.spec_processor(lambda spec: api_description.complete(spec, app))
    secured, proxies = pages.secured(app.wsgi_app), networks_of(settings.trusted_proxies)
    app.wsgi_app = TrustedProxies(secured, proxies)  # type: ignore[method-assign]
    return app
