"""Without a model, and for ops that a registered one cannot forecast, the shipped prior answers, and is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from tests.service.service_data import MACHINE, MEASURED, OPS, UNSEEN
from tests.service.test_server import LONG_S, arguments, running
from threadcast.core import Machine
from threadcast.models.hill_climb import HillClimb
from threadcast.models.joint_process import JointProcess
from threadcast.models.registry import ModelRegistry
from threadcast.models.roofline import Roofline
from threadcast.models.untrained import VERSION
from threadcast.prediction.remote import RemotePredictor
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings

SMALL = Machine.uniform("small", 2)


def test_a_fresh_install_starts_with_the_prior_and_says_so(tmp_path: Path) -> None:
    settings = ServiceSettings(store=tmp_path / "store.sqlite", models=tmp_path / "models")
    with running(settings, tmp_path) as server:
        ready = server.get("/health/ready")
        assert (ready.status, ready.json()["model"]) == (200, VERSION)
        answer = server.post("/v1/predictions", {"ops": [UNSEEN.to_json()], "machine": SMALL.to_json()})
        assert (answer.status, answer.json()["model"]) == (200, VERSION)
        expected = JointProcess(prior=True).predict(UNSEEN, (), SMALL.cases(), machine=SMALL)
        np.testing.assert_allclose(answer.json()["seconds"][0], expected.seconds, rtol=1e-9)
        with RemotePredictor(server.url, SMALL, deadline_s=LONG_S, last_resort=False) as remote:
            np.testing.assert_array_equal(remote.curves([UNSEEN]).seconds[0], answer.json()["seconds"][0])
        registry = ModelRegistry(settings.models)
        registry.set_alias("champion", registry.save(Roofline().fit(MEASURED), trained_on={}, metrics={}))
        answer = server.post("/v1/predictions", {"ops": [UNSEEN.to_json()], "machine": SMALL.to_json()})
        assert answer.json()["model"] == "roofline@1"
    assert f"nothing is registered as champion in {settings.models}: {VERSION} forecasts" in server.errors


def test_a_model_that_is_asked_for_by_name_must_be_there(tmp_path: Path) -> None:
    import subprocess

    settings = ServiceSettings(store=tmp_path / "store.sqlite", models=tmp_path / "models")
    done = subprocess.run(arguments(settings, "--model", "mine"), capture_output=True, text=True, timeout=LONG_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no model or alias 'mine'" in done.stderr
    checked = subprocess.run(arguments(settings, "--check"), capture_output=True, text=True, timeout=LONG_S)
    assert checked.returncode == 0, checked.stdout
    assert f"{VERSION} forecasts" in checked.stdout


@pytest.fixture
def client(settings: ServiceSettings, tmp_path: Path) -> Iterator[FlaskClient]:
    """A service whose champion needs samples of each op."""
    registry = ModelRegistry(tmp_path / "models")
    registry.set_alias("champion", registry.save(HillClimb(), trained_on={}, metrics={}))
    app = create_app(replace(settings, models=tmp_path / "models"))
    yield app.test_client()
    app.extensions["threadcast"].store.close()


def ask(client: FlaskClient, **question: Any) -> dict[str, Any]:
    response = client.post("/v1/predictions", json=question)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.get_json()
    return document


@pytest.mark.parametrize("machine", [MACHINE, SMALL], ids=["stored", "described"])
def test_new_ops_are_forecast_where_the_champion_needs_samples(client: FlaskClient, machine: Machine) -> None:
    found = ask(client, machine=machine.to_json(), ops=[OPS[0].key, UNSEEN.to_json()])
    assert "errors" not in found
    assert set(found["source"][1]) == {"extrapolated"}
    assert (set(found["source"][0]) == {"measured"}) == (machine == MACHINE)
    assert all(low < s < high for low, s, high in zip(*(found[name][1] for name in ("low", "seconds", "high"))))
    only_measured = ask(client, machine=machine.to_json(), ops=[OPS[0].key])
    assert only_measured["model"] == found["model"], "the client takes another name for another model"


def test_a_graph_with_some_curves_needs_neither_store_nor_machine(tmp_path: Path) -> None:
    app = create_app(ServiceSettings(store=tmp_path / "s.sqlite", models=tmp_path / "none"))
    ops = [{"id": "a", "kind": "x", "curve": {"1": 1.0, "2": 0.6}}, {"id": "b", **UNSEEN.to_json()}]
    question = {"graph": {"schema": "threadcast.graph/1", "ops": ops}, "cores": 2, "policy": "sequential"}
    made = app.test_client().post("/v1/plans", json=question).get_json()
    assert made["curves_from"] == f"{VERSION} and file"
    assert [op["source"] == "measured" for op in made["ops"]] == [True, False]
    app.extensions["threadcast"].store.close()


def test_a_machine_that_is_too_large_for_the_prior_is_refused(tmp_path: Path) -> None:
    app = create_app(ServiceSettings(store=tmp_path / "s.sqlite", models=tmp_path / "none"))
    huge = Machine.uniform("huge", 4000)
    response = app.test_client().post("/v1/predictions", json={"ops": [UNSEEN.to_json()], "machine": huge.to_json()})
    assert (response.status_code, response.get_json()["pointer"]) == (422, "/machine")
    assert "at most 600 cases" in response.get_json()["detail"]
    app.extensions["threadcast"].store.close()
