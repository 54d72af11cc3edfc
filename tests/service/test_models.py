"""/v1/models and the aliases."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import UNSEEN
from tests.waiting import eventually
from threadcast.models.base import PerformanceModel
from threadcast.models.registry import ModelRegistry
from threadcast.service.app import create_app
from threadcast.service.model_shelf import ModelShelf
from threadcast.service.settings import ServiceSettings


@pytest.fixture
def settings(settings: ServiceSettings, tmp_path: Path) -> ServiceSettings:
    """Settings over a registry of the test's own, since aliases move."""
    shutil.copytree(settings.models, tmp_path / "registry")
    return replace(settings, models=tmp_path / "registry")


def model_that_answers(client: FlaskClient, **asked: str) -> str:
    response = client.post("/v1/predictions", json={"ops": [UNSEEN.to_json()], **asked})
    assert response.status_code == 200, response.text
    return str(response.get_json()["model"])


def test_every_version_is_listed_with_what_is_known_of_it(client: FlaskClient) -> None:
    document = client.get("/v1/models").get_json()
    assert [model["version"] for model in document["models"]] == ["roofline@1", "roofline@2"]
    assert document["models"][1]["metrics"] == {"accuracy": 0.5}
    assert document["aliases"] == {"champion": "roofline@1"}


def test_a_damaged_alias_is_left_out_of_the_lists_and_named(
    client: FlaskClient, settings: ServiceSettings, caplog: pytest.LogCaptureFixture
) -> None:
    client.put("/v1/models/aliases/next", json={"version": "roofline@2"})
    (settings.models / "aliases" / "next" / "1.json").write_text("{")
    for path in ("/v1/models", "/v1/models/aliases"):
        assert client.get(path).get_json()["aliases"] == {"champion": "roofline@1"}
    assert "damaged and left out of the list of models: alias next" in caplog.messages
    page = client.get("/models")
    assert page.status_code == 200
    assert "alias next" in page.text
    assert client.get("/v1/models/next").status_code == 503


def test_a_moved_alias_answers_from_the_next_request_on_and_keeps_its_history(client: FlaskClient) -> None:
    assert model_that_answers(client) == "roofline@1"
    moved = client.put("/v1/models/aliases/champion", json={"version": "roofline@2"}).get_json()
    assert (moved["alias"], moved["version"]) == ("champion", "roofline@2")
    assert [move["version"] for move in moved["history"]] == ["roofline@1", "roofline@2"]
    assert client.get("/v1/models/aliases/champion").get_json() == moved
    assert client.get("/v1/models/aliases").get_json() == {"aliases": {"champion": "roofline@2"}}
    assert model_that_answers(client) == "roofline@2"


def test_one_call_goes_back_to_the_version_before(client: FlaskClient) -> None:
    client.put("/v1/models/aliases/champion", json={"version": "roofline@2"})
    back = client.post("/v1/models/aliases/champion/rollback", json={})
    assert (back.status_code, back.get_json()["version"]) == (200, "roofline@1")
    assert [move["rollback"] for move in back.get_json()["history"]] == [False, False, True]
    assert model_that_answers(client) == "roofline@1"
    again = client.post("/v1/models/aliases/champion/rollback", json={})
    assert (again.status_code, again.content_type) == (409, "application/problem+json")


def test_a_damaged_version_is_not_promoted(client: FlaskClient, settings: ServiceSettings) -> None:
    file = settings.models / "versions" / "roofline@2" / "model.json"
    file.write_bytes(file.read_bytes().replace(b"roofline", b"r00fline"))
    response = client.put("/v1/models/aliases/champion", json={"version": "roofline@2"})
    assert (response.status_code, response.get_json()["pointer"]) == (422, "/version")
    assert model_that_answers(client) == "roofline@1"


def test_a_version_of_a_kind_that_is_gone_says_so_and_the_cure(client: FlaskClient, settings: ServiceSettings) -> None:
    gone = settings.models / "versions" / "patient_climb@1"
    shutil.copytree(settings.models / "versions" / "roofline@2", gone)
    manifest = json.loads((gone / "manifest.json").read_text())
    (gone / "manifest.json").write_text(json.dumps(manifest | {"version": gone.name, "model": "patient_climb"}))
    refused = client.put("/v1/models/aliases/champion", json={"version": gone.name})
    asked = client.post("/v1/predictions", json={"ops": [UNSEEN.to_json()], "model": gone.name})
    assert (refused.status_code, refused.get_json()["pointer"], asked.status_code) == (422, "/version", 503)
    for response in (refused, asked):
        said = response.get_json()["detail"]
        assert said.startswith("patient_climb@1 is of kind 'patient_climb', which threadcast ")
        assert "`threadcast models rollback ALIAS`" in said
        assert str(settings.models) not in said


def test_a_damaged_version_that_is_asked_for_is_our_fault_and_says_nothing_of_our_paths(
    client: FlaskClient, settings: ServiceSettings
) -> None:
    (settings.models / "versions" / "roofline@1" / "model.json").write_text("{}")
    response = client.post("/v1/predictions", json={"ops": [UNSEEN.to_json()]})
    assert response.status_code == 503
    assert str(settings.models) not in response.text


@pytest.mark.parametrize(
    ("alias", "body", "status", "pointer", "where"),
    [
        ("champion", {"version": "roofline@9"}, 404, "/version", "body"),
        ("champion", {"version": "roofline"}, 422, "/version", "body"),
        ("champion", {"version": "../../etc@1"}, 422, "/version", "body"),
        ("champion", {}, 422, "/version", "body"),
        ("Champion", {"version": "roofline@2"}, 422, "/alias", "path"),
        ("..", {"version": "roofline@2"}, 422, "/alias", "path"),
        ("a/b", {"version": "roofline@2"}, 404, "", "path"),
    ],
)
def test_a_wrong_move_is_refused(
    client: FlaskClient, alias: str, body: dict[str, str], status: int, pointer: str, where: str
) -> None:
    response = client.put(f"/v1/models/aliases/{alias}", json=body)
    problem = response.get_json()
    assert (response.status_code, problem["pointer"], problem["in"]) == (status, pointer, where)


def test_a_service_without_models_plans_with_given_curves_and_says_what_it_lacks(tmp_path: Path) -> None:
    app = create_app(ServiceSettings(store=tmp_path / "s.sqlite", models=tmp_path / "none", model="mine"))
    client = app.test_client()
    assert client.get("/v1/models").get_json() == {"models": [], "aliases": {}}
    machine = {"name": "m", "cores": [[0, [0], 0, 0, 0, None]]}
    response = client.post("/v1/predictions", json={"ops": [UNSEEN.to_json()], "machine": machine})
    assert response.status_code == 503
    assert "mine" in response.get_json()["detail"]
    assert client.get("/health/live").status_code == 200
    assert client.get("/health/ready").status_code == 503
    app.extensions["threadcast"].store.close()


def test_an_alias_that_another_process_moves_is_followed(client: FlaskClient, settings: ServiceSettings) -> None:
    assert model_that_answers(client) == "roofline@1"
    ModelRegistry(settings.models).set_alias("champion", "roofline@2")
    eventually(lambda: model_that_answers(client) == "roofline@2")
    assert 'threadcast_model_info{alias="champion",version="roofline@2"} 1.0' in client.get("/metrics").text
    assert 'threadcast_model_info{alias="champion",version="roofline@1"} 0.0' in client.get("/metrics").text


def test_where_the_new_version_cannot_be_loaded_the_old_one_goes_on(
    client: FlaskClient, settings: ServiceSettings, caplog: pytest.LogCaptureFixture
) -> None:
    assert model_that_answers(client) == "roofline@1"
    (settings.models / "versions" / "roofline@2" / "model.json").write_text("{}")
    ModelRegistry(settings.models).set_alias("champion", "roofline@2")
    counted = 'threadcast_model_load_failures_total{alias="champion"} 1.0'
    eventually(lambda: model_that_answers(client) == "roofline@1" and counted in client.get("/metrics").text)
    assert model_that_answers(client) == "roofline@1"
    assert counted in client.get("/metrics").text  # tried once, not with every request
    assert "champion stays what it was" in caplog.text


def test_an_alias_that_leaves_a_version_while_it_is_loaded_is_followed(
    settings: ServiceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = ModelShelf(settings.models, default="champion")
    load = shelf.registry.load

    def left_first(version: str) -> PerformanceModel:
        if version == "roofline@1":
            shelf.registry.set_alias("champion", "roofline@2")
            shutil.rmtree(settings.models / "versions" / "roofline@1")
        return load(version)

    monkeypatch.setattr(shelf.registry, "load", left_first)
    assert shelf.get()[1] == "roofline@2"


def test_a_version_that_its_alias_has_left_is_dropped(settings: ServiceSettings) -> None:
    shelf = ModelShelf(settings.models, default="champion")
    left = weakref.ref(shelf.get()[0])
    named = shelf.get("roofline@2")[0]
    ModelRegistry(settings.models).set_alias("champion", "roofline@2")
    eventually(lambda: shelf.get()[1] == "roofline@2")
    assert shelf.get()[0] is named
    gc.collect()
    assert left() is None
