"""OpenTelemetry traces of requests: spans for the request, its phases, and every statement of the store.

They are on where one of the `OTEL_EXPORTER_OTLP_` variables names who takes them, and are set by OpenTelemetry's own
variables only. Without, nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from apiflask import APIFlask
from flask import Response, g, request

from threadcast import __version__
from threadcast.core.errors import ConfigError
from threadcast.service.in_flight import UNBOUNDED
from threadcast.service.logs import without_secrets
from threadcast.service.metrics import UNMATCHED
from threadcast.service.request_marks import KEY, TRACE, request_id
from threadcast.store import Store

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Environment variables with the URL of an OTLP receiver."""

EXTENSION = "threadcast.traces"

STATEMENT_CHARS = 1_000
"""Most characters of a statement in a span."""


def asked(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for traces; ConfigError where it asks for what there is not."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return False
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return False
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environment.get(name, "http/protobuf") != "http/protobuf":
            raise ConfigError(f"{name}={environment[name]}: traces are sent as http/protobuf only")
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise ConfigError(f"{' or '.join(ENDPOINTS)} is set; traces need: pip install 'threadcast[traces]'")
    return True


def provider() -> TracerProvider:
    """Return what sends spans to the receiver that the environment names. Make it after a fork: it has a thread."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    usual = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "threadcast"}
    made = TracerProvider(resource=Resource.create({**usual, "service.version": __version__}))
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return made


def install(app: APIFlask, provider: TracerProvider, store: Store) -> None:
    """Trace every request of `app` but those of `in_flight.UNBOUNDED`, within the trace of a `traceparent` header."""
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    app.extensions[EXTENSION] = provider
    kind = store.name.partition(":")[0].partition("+")[0]
    tracer, propagator = provider.get_tracer("threadcast", __version__), TraceContextTextMapPropagator()

    def begin() -> None:
        if request.endpoint in UNBOUNDED:
            return
        route = request.url_rule.rule if request.url_rule else UNMATCHED
        attributes = {
            "http.request.method": request.method, "http.route": route, "url.scheme": request.scheme,
            "url.path": without_secrets(request.path), "threadcast.request_id": request_id(),
        }  # fmt: skip
        sent = {name: request.headers[name] for name in ("traceparent", "tracestate") if name in request.headers}
        span = tracer.start_span(
            f"{request.method} {route}", propagator.extract(sent), trace.SpanKind.SERVER, attributes
        )
        g.span, g.tracer = span, tracer
        g.span_token = context.attach(trace.set_span_in_context(span))
        request.environ[TRACE] = trace.format_trace_id(span.get_span_context().trace_id)

    def note(response: Response) -> Response:
        span = g.get("span")
        if span is not None:
            span.set_attribute("http.response.status_code", response.status_code)
            if KEY in request.environ:
                span.set_attribute("threadcast.key", request.environ[KEY])
            if response.status_code >= 500:
                span.set_status(trace.StatusCode.ERROR)
        return response

    def end(error: BaseException | None) -> None:
        span = g.pop("span", None)
        if span is not None:
            span.end()
            context.detach(g.pop("span_token"))

    def statement(text: str) -> Any:
        if not trace.get_current_span().get_span_context().is_valid:
            return None  # of no request: a check of the service itself
        attributes = {"db.system.name": kind, "db.query.text": text[:STATEMENT_CHARS]}
        return tracer.start_span("store", kind=trace.SpanKind.CLIENT, attributes=attributes)

    def ran(span: Any, error: BaseException | None) -> None:
        if span is not None:
            if error is not None:
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
            span.end()

    app.before_request(begin)
    app.after_request(note)
    app.teardown_request(end)
    store.watch_statements(statement, ran)


def close(app: APIFlask) -> None:
    """Send what has not been sent, and end."""
    made = app.extensions.get(EXTENSION)
    if made is not None:
        made.shutdown()
