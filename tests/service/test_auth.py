"""Who may do what."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.service.service_data import MACHINE, OPS
from threadcast.service.app import Service, create_app
from threadcast.service.auth import scope_of
from threadcast.service.keys import add_key, remove_key
from threadcast.service.settings import ServiceSettings

SCOPES = ("read", "ingest", "admin")
ROWS = {"machine": MACHINE.fingerprint, "measurements": [{"op": OPS[0].key, "threads": 1, "seconds": [1.0]}]}
REQUESTS: dict[str, list[tuple[str, str, Any]]] = {
    "read": [
        ("GET", "/v1/models", None), ("GET", "/v1/measurements", None), ("GET", "/metrics", None), ("GET", "/", None),
        ("GET", "/openapi.json", None), ("GET", "/nowhere", None),
        ("POST", "/v1/predictions", {"ops": [OPS[0].key]}), ("POST", "/v1/plans", {"graph": "net"}),
        ("POST", "/v1/decisions", {"graph": "net", "ready": ["a"]}),
    ],
    "ingest": [("POST", "/v1/measurements", ROWS)],
    "admin": [
        ("PUT", "/v1/models/aliases/champion", {"version": "roofline@1"}),
        ("POST", "/v1/models/aliases/champion/rollback", {}),
    ],
}  # fmt: skip


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    return {scope: add_key(tmp_path / "keys.json", scope, [scope]) for scope in SCOPES}


@pytest.fixture
def app(settings: ServiceSettings, tmp_path: Path, tokens: dict[str, str]) -> Iterator[Service]:
    """The application with three keys, one a scope."""
    import shutil

    shutil.copytree(settings.models, tmp_path / "registry")
    made = create_app(replace(settings, keys=tmp_path / "keys.json", models=tmp_path / "registry"))
    yield made
    made.extensions["threadcast"].store.close()


def refusal(request: tuple[str, str, Any]) -> str:
    """The content type in which a request is refused: pages are for people."""
    return "text/html; charset=utf-8" if request[1] == "/" else "application/problem+json"


def send(client: FlaskClient, request: tuple[str, str, Any], token: str = "") -> TestResponse:
    method, path, body = request
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return client.open(path, method=method, json=body, headers=headers)


def test_without_a_key_nothing_is_answered_but_health(client: FlaskClient) -> None:
    assert client.get("/health/live").status_code == client.get("/health/ready").status_code == 200
    for request in (request for listed in REQUESTS.values() for request in listed):
        response = send(client, request)
        assert (response.status_code, response.content_type) == (401, refusal(request)), request
        assert 'Bearer realm="threadcast"' in response.headers.getlist("WWW-Authenticate")


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_allows_what_its_scope_says_and_nothing_else(
    client: FlaskClient, tokens: dict[str, str], scope: str
) -> None:
    for needed, listed in REQUESTS.items():
        for request in listed:
            response = send(client, request, tokens[scope])
            if scope in (needed, "admin"):
                assert response.status_code not in (401, 403), request
            else:
                assert (response.status_code, response.content_type) == (403, refusal(request)), request
                expected = f'Bearer realm="threadcast", error="insufficient_scope", scope="{needed}"'
                assert response.headers["WWW-Authenticate"] == expected


def test_a_key_that_is_none_is_said_to_be_invalid(client: FlaskClient, tokens: dict[str, str]) -> None:
    for token in (tokens["read"][:-1], "tc_", "x" * 10_000):
        response = send(client, ("GET", "/v1/models", None), token)
        assert response.status_code == 401
        assert 'error="invalid_token"' in response.headers["WWW-Authenticate"]
        assert token not in response.text


def test_a_removed_key_is_refused_from_the_next_request_on(
    client: FlaskClient, tokens: dict[str, str], tmp_path: Path
) -> None:
    assert send(client, ("GET", "/v1/models", None), tokens["read"]).status_code == 200
    remove_key(tmp_path / "keys.json", "read")
    assert send(client, ("GET", "/v1/models", None), tokens["read"]).status_code == 401


def test_a_browsers_password_is_a_key_for_reading_only(client: FlaskClient, tokens: dict[str, str]) -> None:
    headers = {"Authorization": "Basic " + base64.b64encode(f"me:{tokens['admin']}".encode()).decode()}
    assert client.get("/", headers=headers).status_code == 200
    response = client.put("/v1/models/aliases/champion", json={"version": "roofline@1"}, headers=headers)
    assert response.status_code == 401
    assert "Basic" not in str(response.headers.getlist("WWW-Authenticate"))
    assert any("Basic" in challenge for challenge in client.get("/").headers.getlist("WWW-Authenticate"))


def test_every_endpoint_that_changes_something_needs_more_than_read(app: Service) -> None:
    asking = {"predictions.predict", "plans.make_plan", "decisions.decide"}
    for rule in app.url_map.iter_rules():
        for method in (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}:
            assert (scope_of(app, rule.endpoint, method) == "read") == (rule.endpoint in asking), rule


def test_without_keys_only_requests_for_this_machine_are_answered(settings: ServiceSettings) -> None:
    app = create_app(replace(settings, local_only=True))
    client = app.test_client()
    for host in ("localhost", "localhost:8321", "127.0.0.1:8321", "[::1]:8321", "[::1]"):
        assert client.get("/v1/models", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "0.0.0.0:8321"):
        response = client.get("/v1/models", headers={"Host": host})
        assert (response.status_code, response.content_type) == (421, "application/problem+json"), host
    app.extensions["threadcast"].store.close()


def test_the_history_of_an_alias_names_the_key_that_moved_it(app: Service, tokens: dict[str, str]) -> None:
    client = app.test_client()
    assert (
        send(client, ("PUT", "/v1/models/aliases/champion", {"version": "roofline@2"}), tokens["admin"]).status_code
        == 200
    )
    said = send(client, ("POST", "/v1/models/aliases/champion/rollback", {}), tokens["admin"]).get_json()
    assert [move["by"] for move in said["history"]] == ["", "key admin", "key admin"]
    assert "by key admin" in send(client, ("GET", "/models", None), tokens["read"]).text
