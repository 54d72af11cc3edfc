"""Operator times of steps reach a service, which lists them and shows how they have changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.serving import make_server

from threadcast.core import Case, Machine, Op, OpGraph, TensorSpec
from threadcast.core.errors import ServiceUnavailable
from threadcast.core.settings import Settings
from threadcast.runtime.plans import service_feedback, step_forecasts
from threadcast.runtime.plans.service_feedback import add_rows, send_rows
from threadcast.runtime.plans.step_forecasts import Question, answered, may_be_known
from threadcast.runtime.plans.step_rows import measurements
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE
from threadcast.service.app import Service
from threadcast.store import Store

MACHINE = Machine.uniform("of steps", 2)
SPEC = TensorSpec((8, 8), "float32")
OP = Op("mm", (SPEC, SPEC), outputs=(SPEC,))


@pytest.fixture
def url(app: Service) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def settings(folder: Path, url: str) -> Settings:
    return Settings.read(directory=folder, environment={"HOME": str(folder), "THREADCAST_ENGINE_FEEDBACK": url})


def test_a_service_and_the_local_store_get_the_same(url: str, client: FlaskClient, tmp_path: Path) -> None:
    local, found = f"sqlite:///{tmp_path / 'local.sqlite'}", settings(tmp_path, url)
    rows = measurements(OP, MACHINE, {Case(1): [2e-3, 3e-3], Case(2): [1e-3]})
    add_rows(rows, local, found)
    answer = client.get(f"/v1/measurements?machine={MACHINE.fingerprint}").get_json()
    assert answer["total"] == 2
    assert sorted(entry["seconds"] for entry in answer["measurements"]) == [[1e-3], [2e-3, 3e-3]]
    assert {entry["conditions"]["cache"] for entry in answer["measurements"]} == {"step"}
    with Store.open(local) as store:
        assert store.measurements(machine=MACHINE.fingerprint) == rows


def test_a_machine_of_which_nothing_is_stored_begins_with_what_the_service_knows(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_forecasts, "_asked", set())
    monkeypatch.setattr(service_feedback, "_PART", 2)
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", url)
    rows = [row for threads in (1, 2) for row in measurements(OP, MACHINE, {Case(threads): [threads * 1e-3]})]
    rows += [row for kind in ("add", "mul") for row in measurements(replace(OP, kind=kind), MACHINE, {Case(1): [1e-4]})]
    send_rows(rows, url, Settings.read())
    local = f"sqlite:///{tmp_path / 'another.sqlite'}"
    graph = OpGraph(("product",), (OP,), ())
    asked = Question(graph, MACHINE, NATIVE_ENGINE, {}, local, options={"budget_s": 0.1})
    found = answered(asked).plan
    assert found is not None
    assert [placed.threads for placed in found.ops] == [1]
    with Store.open(local) as store:
        assert sorted(m.seconds for m in store.measurements(machine=MACHINE.fingerprint)) == [1e-4, 1e-4, 1e-3, 2e-3]


def test_without_an_answer_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_forecasts, "_asked", set())
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "http://127.0.0.1:9")
    local = f"sqlite:///{tmp_path / 'another.sqlite'}"
    assert answered(Question(OpGraph(("product",), (OP,), ()), MACHINE, NATIVE_ENGINE, {}, local)).plan is None
    assert may_be_known(local)


def test_what_a_service_misses_is_in_the_local_store(tmp_path: Path) -> None:
    local = f"sqlite:///{tmp_path / 'local.sqlite'}"
    with pytest.raises(ServiceUnavailable):
        add_rows(measurements(OP, MACHINE, {Case(1): [1.0]}), local, settings(tmp_path, "http://127.0.0.1:9"))
    with Store.open(local) as store:
        assert len(store.measurements(machine=MACHINE.fingerprint)) == 1
