"""POST /v1/predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from tests.service.service_data import MACHINE, MEASURED, OPS, UNSEEN
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.curve_codec import to_answer
from threadcast.prediction.predictor import LocalPredictor
from threadcast.service.app import Service, create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store


def ask(client: FlaskClient, **question: Any) -> dict[str, Any]:
    response = client.post("/v1/predictions", json=question)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.get_json()
    return document


def test_the_answer_is_the_local_predictors_to_the_last_bit(client: FlaskClient, app: Service) -> None:
    model, version = app.extensions["threadcast"].models.get("champion")
    observed = {op.key: [m for m in MEASURED if m.op == op] for op in OPS}
    expected = LocalPredictor(model, MACHINE, observed, version=version).curves([*OPS, UNSEEN])
    answer = ask(client, machine=MACHINE.to_json(), ops=[op.to_json() for op in (*OPS, UNSEEN)])
    assert answer == {
        "machine": MACHINE.fingerprint, "ops": [op.key for op in (*OPS, UNSEEN)], **to_answer(expected)
    }  # fmt: skip
    assert answer["model"] == "roofline@1"
    assert set(answer["source"][0]) == {"measured"}
    assert set(answer["source"][-1]) == {"learned"}


def test_known_ops_go_by_key_and_the_only_machine_needs_no_name(client: FlaskClient) -> None:
    in_full = ask(client, machine=MACHINE.fingerprint, ops=[op.to_json() for op in OPS])
    assert ask(client, ops=[op.key for op in OPS]) == in_full


@pytest.mark.parametrize("at_once", [1, 512])
def test_ops_of_one_key_with_other_counts_have_curves_of_their_own(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("threadcast.service.deadlines.OPS_AT_ONCE", at_once)
    small, large = (Op("gemm", cost=(flops, 1e6)) for flops in (1e6, 1e12))
    assert small.key == large.key
    alone = [ask(client, ops=[op.to_json()])["seconds"][0] for op in (small, large)]
    assert alone[0] != alone[1]
    answer = ask(client, ops=[op.to_json() for op in (small, large, small)])
    assert answer["seconds"] == [alone[0], alone[1], alone[0]]


def test_cases_are_the_columns_asked_for(client: FlaskClient) -> None:
    whole = ask(client, ops=[OPS[0].key])
    part = ask(client, ops=[OPS[0].key], cases=[{"threads": 4}, {"threads": 1, "affinity": "spread"}])
    assert part["cases"] == [{"threads": 4, "affinity": "compact"}, {"threads": 1, "affinity": "spread"}]
    at = [whole["cases"].index(case) for case in part["cases"]]
    assert part["seconds"] == [np.array(whole["seconds"][0])[at].tolist()]


def test_what_is_measured_counts_from_the_next_request_on(client: FlaskClient, settings: ServiceSettings) -> None:
    before = ask(client, ops=[UNSEEN.to_json()])
    with Store.open(settings.store) as store:
        store.add([Measurement(UNSEEN, MACHINE, Case(4), (Sample(0.123),))])
    after = ask(client, ops=[UNSEEN.to_json()])
    column = after["cases"].index({"threads": 4, "affinity": "compact"})
    assert before["source"][0][column] == "learned"
    assert (after["source"][0][column], after["seconds"][0][column]) == ("measured", 0.123)


OP = OPS[0].to_json()
REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "nothing": ({}, 422, "/ops"),
    "ops and graph": ({"ops": [OP], "graph": "net"}, 422, "/graph"),
    "an empty graph": ({"graph": {"schema": "threadcast.graph/1", "ops": []}}, 422, "/graph/ops"),
    "a member unheard of": ({"ops": [OP], "opz": 1}, 422, "/opz"),
    "sides beyond a double": (
        {"ops": [{"kind": "mm", "inputs": [[10**200, 10**200], [1, 10**200]]}]},
        422,
        "/ops/0/inputs/0",
    ),
    "a key unheard of": ({"ops": ["mm-0123456789abcdef"]}, 404, "/ops/0"),
    "a machine unheard of": ({"ops": [OP], "machine": "elsewhere"}, 404, "/machine"),
    "a machine that is a list": ({"ops": [OP], "machine": [5]}, 422, "/machine"),
    "too many cores": ({"ops": [OP], "machine": {"name": "m", "cores": [0] * 5000}}, 422, "/machine/cores"),
    "a graph unheard of": ({"graph": "nett"}, 404, "/graph"),
    "an edge to nowhere": (
        {"graph": {"schema": "threadcast.graph/1", "ops": [{"id": "a", "kind": "x"}], "edges": [["a", "b"]]}},
        422,
        "/graph/edges/0",
    ),
    "a model unheard of": ({"ops": [OP], "model": "oracle@9"}, 404, "/model"),
    "a case beyond the machine": ({"ops": [OP], "cases": [{"threads": 5}]}, 422, "/cases"),
    "a misspelt affinity": ({"ops": [OP], "cases": [{"threads": 1, "afinity": "spread"}]}, 422, "/cases/0/afinity"),
    "an affinity unheard of": ({"ops": [OP], "cases": [{"threads": 1, "affinity": "near"}]}, 422, "/cases/0/affinity"),
}


@pytest.mark.parametrize(("question", "status", "pointer"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_question_is_refused_with_a_pointer(
    client: FlaskClient, question: dict[str, Any], status: int, pointer: str
) -> None:
    response = client.post("/v1/predictions", json=question)
    assert response.content_type == "application/problem+json"
    problem = response.get_json()
    assert (response.status_code, problem["status"], problem["pointer"]) == (status, status, pointer), problem
    assert problem["detail"]


def test_without_a_machine_known_one_must_be_named(tmp_path: Any, models: Any) -> None:
    app = create_app(ServiceSettings(store=tmp_path / "empty.sqlite", models=models))
    response = app.test_client().post("/v1/predictions", json={"ops": [OP]})
    app.extensions["threadcast"].store.close()
    assert (response.status_code, response.get_json()["pointer"]) == (422, "/machine")


def test_on_a_machine_that_the_model_does_not_know_all_is_extrapolated(client: FlaskClient) -> None:
    elsewhere = Machine.uniform("elsewhere", 2).to_json()
    answer = ask(client, ops=[UNSEEN.to_json()], machine=elsewhere)
    assert answer["source"] == [["extrapolated"] * 2]


@pytest.mark.parametrize(
    ("limit", "question"),
    [
        ("max_ops", {"ops": [OP] * 4}),
        ("max_ops", {"graph": "net"}),
        ("max_cases", {"ops": [OP], "cases": [{"threads": 4}] * 4}),
        ("max_points", {"ops": [OP], "cases": [{"threads": 4}] * 4}),
    ],
)
def test_limits_hold(settings: ServiceSettings, limit: str, question: dict[str, Any]) -> None:
    app = create_app(replace(settings, **{limit: 3}))
    response = app.test_client().post("/v1/predictions", json=question)
    app.extensions["threadcast"].store.close()
    assert response.status_code == 422
    assert "3" in response.get_json()["detail"]
