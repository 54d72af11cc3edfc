"""The service on PostgreSQL: the same contract, and two services on one database that agree."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3
from flask.testing import FlaskClient

from tests.postgres import fresh_database
from tests.service.service_data import CURVES, GRAPH, MEASURED, UNSEEN, graph_document
from tests.service.test_measurements import _sent
from tests.service.test_server import Running, running, samples_of
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

pytestmark = pytest.mark.system


@pytest.fixture
def place(postgres: str, models: Path, tmp_path: Path) -> ServiceSettings:
    """Settings over a database and a registry of the test's own."""
    shutil.copytree(models, tmp_path / "registry")
    url = fresh_database(postgres)
    with Store.open(url) as store:
        store.add(MEASURED)
        store.add_graph("net", GRAPH)
    return ServiceSettings(store=url, models=tmp_path / "registry")


@pytest.fixture
def client(place: ServiceSettings) -> Iterator[FlaskClient]:
    app = create_app(place)
    yield app.test_client()
    app.extensions["threadcast"].store.close()


@pytest.fixture
def two(place: ServiceSettings, tmp_path: Path) -> Iterator[tuple[Running, Running]]:
    """Two servers on one database and one registry."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(running(place, tmp_path)) for _ in range(2))
        yield first, second


def test_measurements_and_plans_come_back(client: FlaskClient) -> None:
    entry = {"op": 0, "threads": 1, "seconds": [1.0]}
    headers = {"Idempotency-Key": "k"}
    for replayed in (None, "true"):
        answer = client.post("/v1/measurements", json=_sent(entry), headers=headers)
        assert (answer.status_code, answer.headers.get("Idempotency-Replayed")) == (201, replayed)
    assert client.post("/v1/measurements", json=_sent(entry, entry), headers=headers).status_code == 409
    assert client.get("/v1/measurements", query_string={"op": UNSEEN.key}).get_json()["total"] == 1
    made = client.post("/v1/plans", json={"graph": graph_document(**CURVES), "cores": 2})
    assert client.get(made.headers["Content-Location"]).data == made.data


def test_text_with_a_nul_is_refused_and_not_our_fault(client: FlaskClient) -> None:
    op = {**UNSEEN.to_json(), "kind": "a\x00b"}
    sent = {**_sent({"op": 0, "threads": 1, "seconds": [1.0]}), "ops": [op]}
    assert client.post("/v1/measurements", json=sent).status_code == 422
    assert client.get("/v1/measurements?kind=%00").status_code == 422
    assert client.get("/v1/curves/%00").status_code in (404, 422)


def test_the_same_key_at_two_services_at_once_stores_once(two: tuple[Running, Running], place: ServiceSettings) -> None:
    answers: list[urllib3.BaseHTTPResponse] = []
    body = samples_of(UNSEEN, 0.5)
    threads = [
        threading.Thread(target=lambda server=server: answers.append(server.post("/v1/measurements", body, "once")))
        for server in two * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [201] * 8
    assert sum("Idempotency-Replayed" not in answer.headers for answer in answers) == 1
    with Store.open(place.store) as store:
        assert len(store.measurements(keys=[UNSEEN.key])) == 1


def test_a_database_that_cannot_be_reached_is_our_fault_and_its_password_stays_here(tmp_path: Path) -> None:
    place = ServiceSettings(store="postgresql://me:secret@/x?host=/nowhere", models=tmp_path)
    with pytest.raises(Exception, match="nowhere") as raised:
        create_app(replace(place))
    assert "secret" not in str(raised.value)
