"""Health, info and metrics."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import MACHINE, MEASURED, OPS, UNSEEN
from threadcast.core import Case, Measurement, Sample
from threadcast.core.settings import SETTINGS
from threadcast.scheduler.policies import names
from threadcast.service.app import create_app
from threadcast.service.settings import FIXED, ServiceSettings
from threadcast.store import Store


def test_a_service_that_can_predict_is_ready_and_names_its_model(client: FlaskClient) -> None:
    assert client.get("/health/live").get_json() == {"status": "live"}
    assert client.get("/health/ready").get_json() == {"status": "ready", "model": "roofline@1", "planner": "ready"}


def test_an_op_that_cannot_be_predicted_does_not_keep_it_from_being_ready(tmp_path: Path, models: Path) -> None:
    wrong = Measurement(UNSEEN, MACHINE, Case(1), (Sample(0.0),))
    for name, first in (("before", [wrong, *MEASURED]), ("after", [*MEASURED, wrong])):
        with Store.open(tmp_path / name) as store:
            store.add(first)
        app = create_app(ServiceSettings(store=tmp_path / name, models=models))
        assert app.test_client().get("/health/ready").status_code == 200
        app.extensions["threadcast"].store.close()


def test_a_damaged_store_does(settings: ServiceSettings) -> None:
    app = create_app(settings)
    with closing(sqlite3.connect(settings.store)) as connection:  # an earlier measurement of the op measured last
        connection.execute("UPDATE measurements SET samples = x'00' WHERE id = (SELECT max(id) - 1 FROM measurements)")
        connection.commit()
    assert app.test_client().get("/health/ready").status_code == 503
    app.extensions["threadcast"].store.close()


def test_info_shows_every_limit_with_its_unit(client: FlaskClient, settings: ServiceSettings) -> None:
    info = client.get("/v1/info").get_json()
    expected = FIXED | {name.removeprefix("service."): setting for name, setting in SETTINGS.items() if name in LIMITS}
    assert info["limits"].keys() == expected.keys()
    for name, limit in info["limits"].items():
        default = getattr(ServiceSettings(store=settings.store, models=settings.models), name)
        assert limit["value"] == getattr(settings, name)
        assert default == expected[name].default
        assert limit["unit"]
    assert info["policies"] == ["auto", "search", *names()]
    assert info["default_model"] == "champion"


LIMITS = {name for name in SETTINGS if name.startswith("service.max_")}
LIMITS |= {"service.deadline_s", "service.receive_s"}


def test_requests_are_counted_by_route_template_method_and_code(client: FlaskClient) -> None:
    client.post("/v1/predictions", json={"ops": [OPS[0].key, UNSEEN.to_json()]})
    client.post("/v1/predictions", json={})
    client.get("/v1/models/roofline@1")
    client.get("/v1/models/nobody")
    client.get("/nowhere/else")
    client.open("/v1/info", method="BREW")
    text = client.get("/metrics").text
    for labels, count in {
        'code="200",method="POST",route="/v1/predictions"': 1,
        'code="422",method="POST",route="/v1/predictions"': 1,
        'code="200",method="GET",route="/v1/models/<reference>"': 1,
        'code="404",method="GET",route="/v1/models/<reference>"': 1,
        'code="404",method="GET",route="(no route)"': 1,
        'code="405",method="other",route="(no route)"': 1,
    }.items():
        assert f"threadcast_http_requests_total{{{labels}}} {count}.0" in text
    assert 'threadcast_http_request_seconds_count{method="POST",route="/v1/predictions"} 2.0' in text
    assert "threadcast_http_requests_in_flight 1.0" in text  # this one
    assert 'threadcast_predicted_points_total{model="roofline@1"} 8.0' in text


def test_why_it_is_not_ready_is_in_the_log(settings: ServiceSettings, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(replace(settings, model="oracle"))
    problem = app.test_client().get("/health/ready").get_json()
    app.extensions["threadcast"].store.close()
    assert (problem["status"], problem["reference"] in caplog.text, "oracle" in caplog.text) == (503, True, True)
