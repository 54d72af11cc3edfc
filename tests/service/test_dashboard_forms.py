"""Promote and rollback from the page: only from a page of this service, and with the key that the form brings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import request
from flask.testing import FlaskClient

from threadcast.models.registry import ModelRegistry
from threadcast.service.app import Service, create_app
from threadcast.service.problems import Problem
from threadcast.service.settings import ServiceSettings

HERE = {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}
PROMOTE, ROLLBACK = "/models/promote", "/models/rollback"


@pytest.fixture
def registry(models: Path, tmp_path: Path) -> ModelRegistry:
    """A copy of the session's registry, since these tests move its alias."""
    shutil.copytree(models, tmp_path / "models")
    return ModelRegistry(tmp_path / "models")


@pytest.fixture
def app(settings: ServiceSettings, registry: ModelRegistry) -> Iterator[Service]:
    made = create_app(ServiceSettings(store=settings.store, models=registry.root))
    yield made
    made.extensions["threadcast"].store.close()


def test_an_alias_is_promoted_and_rolled_back(client: FlaskClient, registry: ModelRegistry) -> None:
    sent = {"alias": "champion", "version": "roofline@2", "key": ""}
    done = client.post(PROMOTE, data=sent, headers=HERE)
    assert (done.status_code, done.location) == (303, "/models?said=promoted&alias=champion")
    assert registry.resolve("champion") == "roofline@2"
    text = client.get(done.location).text
    assert "champion is roofline@2 now." in text
    assert "Roll back to roofline@1" in text
    done = client.post(ROLLBACK, data={"alias": "champion"}, headers=HERE)
    assert registry.resolve("champion") == "roofline@1"
    assert "champion is roofline@1 again: rolled back." in client.get(done.location).text


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
        {"Origin": "https://elsewhere.example"}, {"Origin": "null"}, {},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [PROMOTE, ROLLBACK])
def test_a_form_from_elsewhere_is_refused(
    client: FlaskClient, registry: ModelRegistry, path: str, headers: dict[str, str]
) -> None:
    before = registry.history("champion")
    answer = client.post(path, data={"alias": "champion", "version": "roofline@2"}, headers=headers)
    assert answer.status_code == 403
    assert "was not sent by a page of this service" in answer.text
    assert registry.history("champion") == before


@pytest.mark.parametrize(
    ("sent", "status", "why"),
    [
        ({"alias": "champion", "version": "roofline@9"}, 404, "roofline@9 is not registered"),
        ({"alias": "champion", "version": ""}, 422, "choose a version"),
        ({"alias": "champion", "version": "champion"}, 422, "choose a version"),
        ({"alias": "Not One", "version": "roofline@2"}, 422, "must be lower-case"),
        ({"alias": "aliases", "version": "roofline@2"}, 422, "no alias may be called"),
        ({}, 422, "choose a version"),
    ],
)
def test_what_cannot_be_promoted_is_refused_on_a_page_that_says_why(
    client: FlaskClient, registry: ModelRegistry, sent: dict[str, str], status: int, why: str
) -> None:
    answer = client.post(PROMOTE, data=sent, headers=HERE)
    assert (answer.status_code, answer.content_type) == (status, "text/html; charset=utf-8")
    assert why in answer.text
    assert registry.aliases() == {"champion": "roofline@1"}


def test_the_key_of_a_form_takes_the_place_of_the_header(app: Service) -> None:
    seen: list[str | None] = []
    app.before_request(lambda: seen.append(request.headers.get("Authorization")))
    client, sent = app.test_client(), {"alias": "champion", "version": "roofline@2"}
    client.post(PROMOTE, data={**sent, "key": " secret "}, headers=HERE)
    client.post(PROMOTE, data={**sent, "key": "secret"}, headers={**HERE, "Authorization": "Basic eDp5"})
    client.post(PROMOTE, data=sent, headers={**HERE, "Authorization": "Bearer other"})
    client.post(PROMOTE, data=sent, headers=HERE)
    assert seen == ["Bearer secret", "Bearer secret", "Bearer other", None]


def test_the_key_appears_in_no_answer(client: FlaskClient) -> None:
    sent = {"alias": "champion", "version": "roofline@9", "key": "very-secret"}
    answer = client.post(PROMOTE, data=sent, headers=HERE)
    assert "very-secret" not in answer.text
    assert "very-secret" not in str(answer.headers)


def test_a_page_that_is_refused_keeps_the_challenge_for_a_key(app: Service) -> None:
    def refuse() -> None:
        raise Problem(401, "send a key", headers={"WWW-Authenticate": "Basic"})

    app.before_request(refuse)
    answer = app.test_client().get("/models")
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Basic")
    assert "A key is needed" in answer.text
