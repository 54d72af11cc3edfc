"""Tables of curves as Arrow streams, and batches that are asked for again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flask.testing import FlaskClient

from tests.service.service_data import MACHINE, OPS, UNSEEN, measure
from tests.service.test_server import LONG_S, Running, running
from tests.waiting import eventually
from threadcast.core import Case, Measurement, Op, Sample
from threadcast.prediction import arrow_curves
from threadcast.prediction.remote import RemotePredictor
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

ARROW = {"Accept": arrow_curves.MEDIA_TYPE}
BATCH = {"ops": [UNSEEN.to_json(), OPS[0].key], "machine": MACHINE.fingerprint}
KEYS = [UNSEEN.key, OPS[0].key]


def test_an_arrow_stream_has_the_same_curves_as_json(client: FlaskClient) -> None:
    response = client.post("/v1/predictions", json=BATCH, headers=ARROW)
    assert (response.content_type, response.headers["Vary"]) == (arrow_curves.MEDIA_TYPE, "Accept")
    document, table = arrow_curves.read_stream(response.data, keys=KEYS, cases=MACHINE.cases())
    json = client.post("/v1/predictions", json=BATCH).get_json()
    assert (document["machine"], document["model"]) == (json["machine"], json["model"])
    for name in ("seconds", "low", "high"):
        np.testing.assert_array_equal(getattr(table, name), json[name])
    assert [[document["sources"][code] for code in row] for row in table.source] == json["source"]


def test_one_curve_is_kept_in_both_forms(client: FlaskClient) -> None:
    path = f"/v1/curves/{OPS[0].key}"
    for _ in range(2):
        json, stream = client.get(path), client.get(path, headers=ARROW)
        assert json.headers["ETag"] != stream.headers["ETag"]
        _, table = arrow_curves.read_stream(stream.data, keys=KEYS[1:], cases=MACHINE.cases())
        np.testing.assert_array_equal(table.seconds, json.get_json()["seconds"])
    tag = {"If-None-Match": stream.headers["ETag"]}
    assert (client.get(path, headers=ARROW | tag).status_code, client.get(path, headers=tag).status_code) == (304, 200)


@pytest.mark.parametrize(
    ("accepted", "form"),
    [
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        (f"{arrow_curves.MEDIA_TYPE}, application/json;q=0.5", arrow_curves.MEDIA_TYPE),
        (f"{arrow_curves.MEDIA_TYPE};q=0.1, application/json", "application/json"),
        ("application/json; charset=utf-8", "application/json"),
        ("Application/JSON;charset=UTF-8;q=0.2", "application/json"),
        ("", "application/json"),
        (" , ", "application/json"),
        ("*/*;q=0.1", "application/json"),
        ("text/html, application/xhtml+xml, */*;q=0.01", "application/json"),
        ("*", "application/json"),
        ("text/csv, application/json;q=0.001", "application/json"),
        ("application/json;q=0, */*", arrow_curves.MEDIA_TYPE),
        (f"{arrow_curves.MEDIA_TYPE};version=1, application/*;q=0.9", arrow_curves.MEDIA_TYPE),
        ('application/json;profile="a, b; c=d"', "application/json"),
        ("application/json;q=high", "application/json"),
    ],
)
def test_the_form_that_is_accepted_best_is_sent(client: FlaskClient, accepted: str, form: str) -> None:
    for send in (client.post, client.get):
        path = "/v1/predictions" if send == client.post else f"/v1/curves/{OPS[0].key}"
        response = send(path, json=BATCH if send == client.post else None, headers={"Accept": accepted})
        assert (response.status_code, response.content_type) == (200, form)


@pytest.mark.parametrize(
    "accepted", ["text/csv", "application/problem+json", "application/json;q=0", "*/*;q=0", "text/*, image/*;q=0.5"]
)
def test_a_form_that_is_not_offered_is_refused(client: FlaskClient, accepted: str) -> None:
    response = client.post("/v1/predictions", json=BATCH, headers={"Accept": accepted})
    assert (response.status_code, response.get_json()["pointer"]) == (406, "/Accept")


def test_without_pyarrow_json_is_sent_and_only_arrow_is_refused(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_curves, "is_available", lambda: False)
    both = {"Accept": f"{arrow_curves.MEDIA_TYPE}, application/json;q=0.5"}
    assert client.post("/v1/predictions", json=BATCH, headers=both).is_json
    assert client.post("/v1/predictions", json=BATCH, headers=ARROW).status_code == 406


@pytest.mark.parametrize("headers", [{}, ARROW], ids=["json", "arrow"])
def test_a_batch_that_has_not_changed_is_not_sent_again(
    client: FlaskClient, settings: ServiceSettings, headers: dict[str, str]
) -> None:
    first = client.post("/v1/predictions", json=BATCH, headers=headers)
    tagged = headers | {"If-None-Match": first.headers["ETag"]}
    again = client.post("/v1/predictions", json=BATCH, headers=tagged)
    assert (again.status_code, again.headers["ETag"]) == (412, first.headers["ETag"])
    assert again.get_json()["pointer"] == "/If-None-Match"
    less = client.post("/v1/predictions", json={**BATCH, "cases": [{"threads": 4}]}, headers=tagged)
    assert less.status_code == 200
    with Store.open(settings.store) as store:
        store.add([measure(UNSEEN, case) for case in MACHINE.cases()])
    eventually(lambda: client.post("/v1/predictions", json=BATCH, headers=tagged).status_code == 200)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, models: Path, filled_store: Path) -> Iterator[tuple[Running, Path]]:
    """A running service, and its store."""
    directory = tmp_path_factory.mktemp("remote")
    store = Path(shutil.copy(filled_store, directory / "store.sqlite"))
    with running(ServiceSettings(store=store, models=models), directory) as server:
        yield server, store


@pytest.mark.parametrize("with_arrow", [True, False], ids=["arrow", "json"])
def test_the_client_asks_the_real_service_for_stale_curves_again(
    place: tuple[Running, Path], with_arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, path = place
    monkeypatch.setattr(arrow_curves, "is_available", lambda: with_arrow)
    ops = [OPS[2 + with_arrow], UNSEEN]

    with RemotePredictor(server.url, MACHINE, deadline_s=LONG_S, fresh_s=0.0, last_resort=False) as remote:
        first = remote.curves(ops)
        with Store.open(path) as store:
            store.add([slower(ops[0])] * 20)
        eventually(lambda: not np.array_equal(remote.curves(ops).seconds, first.seconds))
        assert remote.status.last_error is None


def slower(op: Op) -> Measurement:
    """A measurement that took three times as long as those in the store."""
    found = measure(op, Case(4))
    return replace(found, samples=tuple(Sample(3 * sample.seconds) for sample in found.samples))
