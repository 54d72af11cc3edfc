"""Traces reach a real OTLP receiver, follow the caller's, and cost nothing where nobody asked for them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.service.service_data import OPS
from tests.service.test_server import LONG_S, running
from threadcast.core.errors import ConfigError
from threadcast.service import traces
from threadcast.service.keys import add_key
from threadcast.service.settings import ServiceSettings

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver:
    """An OTLP receiver over HTTP, and the spans that it got."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for group in sent.resource_spans:
                    kept.resources.append({a.key: a.value.string_value for a in group.resource.attributes})
                    kept.spans += [span for scope in group.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_a_request_is_traced_with_its_phases_and_statements(
    receiver: Receiver, settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    token = add_key(tmp_path / "keys.json", "ci", ["read"])
    (tmp_path / "threadcast.toml").write_text('[service]\naccess_log = true\nlog_format = "json"\n')
    headers = {"Authorization": f"Bearer {token}", "traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "ask-1"}
    with running(settings, tmp_path, "--keys", str(tmp_path / "keys.json")) as server:
        for path, body in (("/v1/predictions", {"ops": [OPS[0].key]}), ("/v1/plans", {"graph": "net", "cores": 2})):
            answer = urllib3.request("POST", server.url + path, json=body, headers=headers, timeout=LONG_S)
            assert answer.status == 200
        assert server.get(f"/v1/models/{token}").status == 401
        assert server.get("/health/live").status == 200
        server.end()  # what has not been sent is sent
    assert receiver.resources[0]["service.name"] == "threadcast"
    names = {span.name for span in receiver.spans}
    requests = {"POST /v1/predictions", "POST /v1/plans", "GET /v1/models/<reference>"}
    assert names == {*requests, "model", "plan", "write", "store"}
    by_name = {span.name: span for span in receiver.spans}
    asked = by_name["POST /v1/predictions"]
    assert (asked.trace_id.hex(), asked.parent_span_id.hex()) == (TRACE, PARENT)
    found = attributes(asked)
    assert (found["http.response.status_code"], found["http.route"]) == (200, "/v1/predictions")
    assert (found["threadcast.key"], found["threadcast.request_id"]) == ("ci", "ask-1")
    planned = by_name["POST /v1/plans"]
    assert by_name["plan"].parent_span_id == planned.span_id
    phases = [span.span_id for span in receiver.spans if span.name in ("model", "plan", "write")]
    within = {asked.span_id, planned.span_id, *phases}
    statements = [span for span in receiver.spans if span.name == "store"]
    assert all(span.parent_span_id in within and span.trace_id.hex() == TRACE for span in statements)
    assert any("INSERT INTO" in attributes(span)["db.query.text"] for span in statements)
    assert {attributes(span)["db.system.name"] for span in statements} == {"sqlite"}
    assert token not in str(receiver.spans)
    assert by_name["GET /v1/models/<reference>"].trace_id.hex() != TRACE  # it named none


def test_without_a_receiver_nothing_of_opentelemetry_is_imported(settings: ServiceSettings, tmp_path: Path) -> None:
    code = f"""
import sys, json
from pathlib import Path
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
app = create_app(ServiceSettings(store=Path({str(settings.store)!r}), models=Path({str(settings.models)!r})))
assert app.test_client().get("/v1/models").status_code == 200
print(json.dumps([name for name in sys.modules if name.startswith("opentelemetry")]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout) == []


def test_a_receiver_that_is_gone_holds_nothing_up(
    settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with running(settings, tmp_path) as server:
        for _ in range(5):
            assert server.get("/v1/info").status == 200
        assert server.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(("environment", "asked"), [
    ({}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, True),
    ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/v1/traces"}, True),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
])  # fmt: skip
def test_the_standard_variables_turn_traces_on(environment: dict[str, str], asked: bool) -> None:
    assert traces.asked(environment) is asked


def test_another_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="http/protobuf only"):
        traces.asked({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
