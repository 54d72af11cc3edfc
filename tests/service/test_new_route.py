"""What CONTRIBUTING says of adding a route: its file, its line in `app`, this test; all else follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from apiflask import APIBlueprint
from flask import Response
from pydantic import Field, with_config
from typing_extensions import TypedDict

from threadcast.service import app as whole
from threadcast.service.answers import Example, answer
from threadcast.service.context import reply
from threadcast.service.formats import CLOSED, Threads
from threadcast.service.keys import add_key
from threadcast.service.schemas import Body
from threadcast.service.settings import ServiceSettings


class Doubling(Body):
    """A number of threads that is to be doubled."""

    threads: Threads = Field(description="some")


@with_config(CLOSED)
class Doubled(TypedDict):
    """Twice as many."""

    threads: Threads


blueprint = APIBlueprint("doubling", __name__, url_prefix="/v1")


@blueprint.post("/doubling")
@blueprint.input(Doubling, arg_name="asked")
@blueprint.doc(extensions=answer(Doubled, "Twice.", scope="read", example=Example({"threads": 2})))
def double(asked: Doubling) -> Response:
    """Double a number of threads"""
    return reply({"threads": 2 * asked.threads})


def test_a_route_is_checked_described_guarded_and_counted_by_what_its_file_says(
    settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_BLUEPRINTS", (*whole._BLUEPRINTS, SimpleNamespace(blueprint=blueprint)))
    keys = tmp_path / "keys.json"
    tokens = {scope: add_key(keys, scope, [scope]) for scope in ("read", "ingest")}
    app = whole.create_app(replace(settings, keys=keys))
    try:
        client = app.test_client()
        headers = {scope: {"Authorization": f"Bearer {token}"} for scope, token in tokens.items()}
        given = client.post("/v1/doubling", json={"threads": 4}, headers=headers["read"])
        assert (given.status_code, given.get_json()) == (200, {"threads": 8})
        wrong = client.post("/v1/doubling", json={"threads": 0, "thread": 1}, headers=headers["read"])
        assert (wrong.status_code, wrong.content_type) == (422, "application/problem+json")
        assert client.post("/v1/doubling", json={"threads": 4}, headers=headers["ingest"]).status_code == 403
        operation = app.spec["paths"]["/v1/doubling"]["post"]
        assert operation["summary"] == "Double a number of threads"
        assert {"200", "401", "403", "413", "422", "429"} <= operation["responses"].keys()
        schemas = app.spec["components"]["schemas"]
        assert {"Doubling", "Doubled"} <= schemas.keys()
        assert schemas["Doubling"]["additionalProperties"] is False
        counted = client.get("/metrics", headers=headers["read"]).get_data(as_text=True)
        assert 'route="/v1/doubling"' in counted
    finally:
        app.extensions["threadcast"].store.close()
