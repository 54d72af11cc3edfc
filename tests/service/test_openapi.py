"""The description, the documentation and the code say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flask.testing import FlaskClient

from docs import routes_page
from threadcast.service.app import Service, create_app
from threadcast.service.keys import add_key
from threadcast.service.openapi import description
from threadcast.service.settings import ServiceSettings

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


def test_the_documentation_has_a_page_of_every_route_and_document() -> None:
    spec = json.loads(description())
    page = routes_page.render(spec)
    for path, item in spec["paths"].items():
        assert all(f"## `{method.upper()} {path}` " in page for method in item)
    assert all(f"### {name}\n" in page for name in spec["components"]["schemas"])


def test_every_route_of_the_api_is_described(app: Service, client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    assert spec["openapi"].startswith("3.1.")
    described = {(method.upper(), path) for path, item in spec["paths"].items() for method in item}
    pages = {*documented("dashboard.md"), ("GET", "/docs"), ("GET", "/openapi.json")}
    assert described == set(routes(app)) - pages


def test_every_answer_has_a_schema_and_headers(client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    for item in spec["paths"].values():
        for operation in item.values():
            for status, response in operation["responses"].items():
                if "$ref" in response:
                    assert response["$ref"] == f"#/components/responses/{status}"
                    response = spec["components"]["responses"][status]
                assert "X-Request-Id" in response["headers"]
                assert status == "304" or all(content["schema"] for content in response["content"].values())


def test_every_get_under_v1_can_be_asked_conditionally(client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    for path, item in spec["paths"].items():
        if path.startswith("/v1/") and "get" in item:
            operation = item["get"]
            assert {"304", "200"} < operation["responses"].keys()
            assert operation["responses"]["200"]["headers"]["ETag"]["required"]
            assert "If-None-Match" in {parameter["name"] for parameter in operation["parameters"]}


def test_the_description_says_whether_this_service_asks_for_keys(settings: ServiceSettings, tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", "a", ["admin"])
    for keys, security in ((None, [{}, {"key": []}]), (tmp_path / "keys.json", [{"key": []}])):
        app = create_app(replace(settings, keys=keys))
        assert app.spec["security"] == security
        assert app.spec["paths"]["/health/live"]["get"]["security"] == []
        app.extensions["threadcast"].store.close()


def test_every_metric_is_documented(client: FlaskClient) -> None:
    exposed = set(re.findall(r"^# TYPE (threadcast_\w+)", client.get("/metrics").text, re.MULTILINE))
    listed = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "operating.md").read_text(), re.MULTILINE))
    assert {name for name in exposed if not name.endswith("_created")} == listed
