"""Every error is a problem document, and says nothing of what is behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from flask import Response, g
from flask.testing import FlaskClient

from tests.service.service_data import OPS
from threadcast.core.errors import StoreError
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings

QUESTION = json.dumps({"ops": [OPS[0].key]})


def post(client: FlaskClient, body: str | bytes, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in {"Content_Type": "application/json", **headers}.items()}
    return client.post("/v1/predictions", data=body, headers=named)


def assert_problem(response: Any, status: int, pointer: str = "", where: str = "body") -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.content_type == "application/problem+json"
    problem: dict[str, Any] = response.get_json()
    assert {"type", "title", "status", "detail", "pointer", "in"} <= problem.keys()
    assert (problem["status"], problem["pointer"], problem["in"]) == (status, pointer, where)
    assert "Traceback" not in response.text
    return problem


def test_unknown_paths_and_methods(client: FlaskClient) -> None:
    assert_problem(client.get("/v2/predictions"), 404, where="path")
    assert_problem(client.get("/static/../app.py"), 404, where="path")
    response = client.get("/v1/predictions")
    assert_problem(response, 405, where="path")
    assert set(response.allow or ()) == {"OPTIONS", "POST"}


@pytest.mark.parametrize(
    "body",
    ["", "{", "nul", "{'ops': []}", '{"ops": [NaN]}', '{"ops": [Infinity]}', '{"ops": [1e999]}', '{"ops": [-1e0999]}',
     '{"ops": [' + "9" * 400 + "]}", '{"ops": ["\\ud800"]}', "[" * 200_000, b"\xff{}", '{"a": 1}'.encode("utf-16"),
     '{"ops": [' + "9" * 5000 + "]}"],
    ids=range(14),
)  # fmt: skip
def test_a_body_that_is_not_strict_json_is_refused(client: FlaskClient, body: str | bytes) -> None:
    assert "not JSON" in assert_problem(post(client, body), 400)["detail"]


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_another_content_type_is_refused(client: FlaskClient, media: str) -> None:
    assert_problem(post(client, QUESTION, Content_Type=media), 415, "/Content-Type", "header")


def test_a_body_compressed_otherwise_than_by_gzip_is_refused(client: FlaskClient) -> None:
    response = post(client, QUESTION, Content_Encoding="br")
    assert_problem(response, 415, "/Content-Encoding", "header")
    assert response.headers["Accept-Encoding"] == "gzip, identity"


@pytest.fixture
def tight(settings: ServiceSettings) -> Iterator[FlaskClient]:
    app = create_app(replace(settings, max_body_bytes=100))
    yield app.test_client()
    app.extensions["threadcast"].store.close()


def test_a_body_beyond_the_limit_is_refused_whether_or_not_it_says_its_length(tight: FlaskClient) -> None:
    assert post(tight, QUESTION).status_code == 200
    assert_problem(post(tight, QUESTION + " " * 100), 413)
    unannounced = tight.post(
        "/v1/predictions", input_stream=BytesIO(QUESTION.encode() + b" " * 100),
        headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"},
        environ_overrides={"wsgi.input_terminated": True},
    )  # fmt: skip
    assert_problem(unannounced, 413)


def test_several_findings_are_all_listed(client: FlaskClient) -> None:
    problem = assert_problem(post(client, '{"model": 3, "colour": "red"}'), 422, "/model")
    assert [error["pointer"] for error in problem["errors"]] == ["/model", "/colour"]


def test_of_a_list_the_first_wrong_entry_is_told(client: FlaskClient) -> None:
    problem = assert_problem(post(client, '{"ops": ["", 1, 2], "model": 3}'), 422, "/ops/0")
    assert [error["pointer"] for error in problem["errors"]] == ["/ops/0", "/model"]


def test_findings_beyond_number_are_counted(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadcast.service.schemas.MOST_DESCRIBED", 2)
    assert_problem(post(client, '{"a": 1, "b": 1}'), 422, "/a")
    problem = assert_problem(post(client, '{"a": 1, "b": 1, "c": 1}'), 422)
    assert problem["detail"] == "3 members are unknown or wrong"


ENTRY = {"op": 0, "threads": 1, "seconds": [1.0]}
LONG = [None] * 4
"""A list that is refused for its length, before anything is said of its entries."""


@pytest.mark.parametrize(
    ("limit", "path", "body", "pointer"),
    [
        ("max_ops", "predictions", {"ops": LONG}, "/ops"),
        ("max_ops", "plans", {"graph": {"schema": "threadcast.graph/1", "ops": LONG}}, "/graph/ops"),
        ("max_ops", "decisions", {"ready": LONG}, "/ready"),
        ("max_ops", "decisions", {"ready": [], "running": LONG}, "/running"),
        ("max_ops", "measurements", {"ops": LONG, "measurements": [ENTRY]}, "/ops"),
        ("max_edges", "plans", {"graph": {"schema": "threadcast.graph/1", "ops": [], "edges": LONG}}, "/graph/edges"),
        (
            "max_edges", "plans",
            {"graph": {"schema": "threadcast.graph/1", "ops": [], "ordering_edges": LONG}}, "/graph/ordering_edges",
        ),
        ("max_cases", "predictions", {"cases": LONG}, "/cases"),
        ("max_rows", "measurements", {"measurements": LONG}, "/measurements"),
        (
            "max_rows", "measurements", {"measurements": [{"op": 0, "threads": 1, "seconds": LONG}]},
            "/measurements/0/seconds",
        ),
    ],
)  # fmt: skip
def test_lists_beyond_a_limit_are_not_looked_at(
    settings: ServiceSettings, limit: str, path: str, body: dict[str, Any], pointer: str
) -> None:
    app = create_app(replace(settings, **{limit: 3}))
    problem = assert_problem(app.test_client().post(f"/v1/{path}", json=body), 422, pointer)
    app.extensions["threadcast"].store.close()
    assert f"4 entries; at most {limit}=3 are allowed" in problem["detail"]
    assert "errors" not in problem


def test_a_body_of_too_many_values_is_not_decoded(settings: ServiceSettings) -> None:
    app = create_app(replace(settings, max_body_values=8))
    client = app.test_client()
    assert post(client, '{"graph": {"a": [1, 2, 3], "b": [4]}}').status_code == 422
    problem = assert_problem(post(client, '{"graph": {"a": [1, 2, 3], "b": [4, 5]} no JSON'), 413)
    app.extensions["threadcast"].store.close()
    assert "max_body_values=8" in problem["detail"]


def test_one_request_too_many_gets_429_and_the_place_comes_free_again(settings: ServiceSettings) -> None:
    app = create_app(replace(settings, max_in_flight=1))
    client = app.test_client()
    refused: list[Any] = []

    def meanwhile() -> None:
        if not g.get("nested") and not refused:
            refused.append(app.test_client().get("/v1/info"))
            refused.append(app.test_client().get("/health/live"))
            refused.append(app.test_client().get("/metrics"))
            refused.append(app.test_client().get("/networks"))

    app.before_request(meanwhile)
    assert client.get("/v1/info").status_code == 200
    assert_problem(refused[0], 429)
    assert refused[0].headers["Retry-After"] == "1"
    assert [answer.status_code for answer in refused[1:]] == [200, 200, 429]
    assert client.get("/v1/info").status_code == 200
    app.extensions["threadcast"].store.close()


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("secret /private/path"), 500), (StoreError("secret sqlite:////private/path"), 503),
     (RecursionError("secret"), 500), (MemoryError("secret"), 500), (KeyError("secret"), 500)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_failure_of_ours_gives_a_reference_to_the_log_and_nothing_else(
    settings: ServiceSettings, error: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(settings)

    def fail() -> Response:
        raise error

    app.add_url_rule("/fail", view_func=fail)
    response = app.test_client().get("/fail")
    problem = assert_problem(response, status)
    assert "secret" not in response.text
    assert problem["reference"] in caplog.text
    assert "secret" in caplog.text
    app.extensions["threadcast"].store.close()


def test_every_answer_has_security_headers(client: FlaskClient) -> None:
    for path in ("/", "/docs", "/v1/info", "/nowhere", "/metrics", "/static/style.css"):
        headers = client.get(path, buffered=True).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
