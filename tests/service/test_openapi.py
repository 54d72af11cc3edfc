"""The description, the documentation and the code say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from threadcast.core.settings import SETTINGS
from threadcast.service.app import Service
from threadcast.service.openapi import description

DOCS = Path(__file__).parents[2] / "docs"


def routes(app: Service) -> Iterator[tuple[str, str]]:
    """(method, path as OpenAPI writes it) of every route but that of the static files."""
    for rule in app.url_map.iter_rules():
        if rule.endpoint != "static":
            path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
            yield from ((method, path) for method in sorted(rule.methods or ()) if method not in ("HEAD", "OPTIONS"))


def documented(page: str) -> list[tuple[str, str]]:
    """(method, path) of every line of a document's table of routes."""
    return re.findall(r"^\| `(GET|POST|PUT|DELETE) (/[^`]*)` \|", (DOCS / page).read_text(), re.MULTILINE)


def test_the_stored_description_is_the_codes() -> None:
    stored = (DOCS / "openapi.json").read_text()
    assert stored == description(), "run: python -m threadcast.service.openapi > docs/openapi.json"


def test_every_route_is_documented_and_nothing_else(app: Service) -> None:
    assert sorted(documented("http.md") + documented("dashboard.md")) == sorted(routes(app))


def test_every_route_of_the_api_is_described(app: Service, client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    assert spec["openapi"].startswith("3.1.")
    described = {(method.upper(), path) for path, item in spec["paths"].items() for method in item}
    pages = {*documented("dashboard.md"), ("GET", "/docs"), ("GET", "/openapi.json")}
    assert described == set(routes(app)) - pages


def test_every_operation_has_a_summary_an_id_and_problems(client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    operations = [operation for item in spec["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        assert "application/problem+json" in operation["responses"]["default"]["content"]


def test_references_lead_somewhere(client: FlaskClient) -> None:
    text = client.get("/openapi.json").text
    components = json.loads(text)["components"]["schemas"]
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert named <= components.keys()
    assert "x-component" not in text


def test_every_metric_and_limit_is_documented(client: FlaskClient) -> None:
    text = (DOCS / "http.md").read_text()
    exposed = re.findall(r"^# TYPE (\w+) (?!gauge\n.*_created)", client.get("/metrics").text, re.MULTILINE)
    for metric in exposed:
        if not metric.endswith("_created"):
            assert f"`{metric}`" in text
    for name in SETTINGS:
        if name.startswith("service."):
            assert f"`{name}`" in text or f"`{name.removeprefix('service.')}`" in text


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["well-formed", "ill-formed"])
def test_whatever_is_sent_the_answer_is_as_described(app: Service, mode: GenerationMode) -> None:
    """Requests made from the description, and against it: no 500, statuses, types and bodies as described.

    One check is left out: that what fits the schema is accepted. A schema cannot say that an edge must name an op.
    """
    tried = 0
    for found in schemathesis.openapi.from_wsgi("/openapi.json", app).get_all_operations():
        operation = found.ok()
        takes_something = operation.body or operation.query or operation.path_parameters
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # every text fits a path

        @settings(
            max_examples=6 if takes_something else 1, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        send()
    assert tried >= 25
