"""POST and GET /v1/measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import MACHINE, MEASURED, OPS, UNSEEN
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

NEW = Machine.uniform("new", 2)
OP = UNSEEN.to_json()


def get(client: FlaskClient, **query: Any) -> dict[str, Any]:
    response = client.get("/v1/measurements", query_string=query)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.get_json()
    return document


def test_pages_join_to_all_that_is_stored(client: FlaskClient) -> None:
    entries, after = [], 0
    while after is not None:
        page = get(client, after=after, limit=3)
        entries += page["measurements"]
        after = page["next"]
    assert len(entries) == page["total"] == len(MEASURED)
    assert [(e["op"], e["threads"], e["affinity"]) for e in entries] == [
        (m.op.key, m.case.threads, m.case.affinity.value) for m in MEASURED
    ]


def test_measurements_go_from_one_service_to_another_without_loss(
    client: FlaskClient, tmp_path: Path, models: Path
) -> None:
    other = create_app(ServiceSettings(store=tmp_path / "other.sqlite", models=models))
    page = get(client, limit=1000)
    sent = {name: page[name] for name in ("machines", "ops", "measurements")}
    response = other.test_client().post("/v1/measurements", json=sent)
    assert (response.status_code, response.get_json()) == (
        201,
        {"measurements": len(MEASURED), "samples": 60},
    )
    assert other.extensions["threadcast"].store.measurements() == list(MEASURED)
    other.extensions["threadcast"].store.close()


def test_ops_may_go_by_their_position_and_the_machine_is_the_documents(
    client: FlaskClient, settings: ServiceSettings
) -> None:
    entries = [{"op": 1, "threads": 2, "seconds": [0.5]}, {"op": 0, "threads": 1, "seconds": [0.25]}]
    sent = {"machine": NEW.to_json(), "ops": [OPS[0].to_json(), OP], "measurements": entries}
    assert client.post("/v1/measurements", json=sent).status_code == 201
    with Store.open(settings.store) as store:
        found = store.measurements(machine=NEW.fingerprint)
    assert [(m.op, m.case, m.seconds) for m in found] == [(UNSEEN, Case(2), 0.5), (OPS[0], Case(1), 0.25)]


SENT = {"machine": MACHINE.fingerprint, "ops": [OP], "measurements": [{"op": 0, "threads": 2, "seconds": [1.0]}]}


def test_the_same_key_and_body_store_once_and_get_the_same_answer(client: FlaskClient) -> None:
    answers = [client.post("/v1/measurements", json=SENT, headers={"Idempotency-Key": "run-7"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert [answer.get_json() for answer in answers] == [{"measurements": 1, "samples": 1}] * 3
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true", "true"]
    assert get(client, op=UNSEEN.key)["total"] == 1
    assert "threadcast_stored_samples_total 1.0" in client.get("/metrics").text


def test_the_same_key_for_another_body_is_refused(client: FlaskClient) -> None:
    headers = {"Idempotency-Key": "run-8"}
    client.post("/v1/measurements", json=SENT, headers=headers)
    response = client.post("/v1/measurements", json={**SENT, "machine": MACHINE.to_json()}, headers=headers)
    problem = response.get_json()
    assert (response.status_code, problem["pointer"], problem["in"]) == (409, "/Idempotency-Key", "header")
    assert get(client, op=UNSEEN.key)["total"] == 1


ENTRY = {"op": 0, "threads": 1, "seconds": [1.0, 2.0]}


def _sent(*entries: Any, **more: Any) -> dict[str, Any]:
    return {"machine": MACHINE.to_json(), "ops": [OP], "measurements": list(entries), **more}


REFUSED: dict[str, tuple[Any, int, str]] = {
    "a position beyond the ops": (_sent({**ENTRY, "op": 1}), 422, "/measurements/0/op"),
    "an op key unheard of": (_sent({**ENTRY, "op": "mm-0"}), 422, "/measurements/0/op"),
    "a machine unheard of": (_sent({**ENTRY, "machine": "elsewhere"}), 422, "/measurements/0/machine"),
    "no machine": ({"ops": [OP], "measurements": [ENTRY]}, 422, "/measurements/0/machine"),
    "a negative count": (_sent({**ENTRY, "counters": {"c": [-1, 1]}}), 422, "/measurements/0/counters/c/0"),
    "no time at all": (_sent({**ENTRY, "seconds": [0]}), 422, "/measurements/0/seconds/0"),
    "a sample longer than any op": (_sent({**ENTRY, "seconds": [1e300]}), 422, "/measurements/0/seconds/0"),
    "a member unheard of": (_sent({**ENTRY, "milliseconds": 3}), 422, "/measurements/0/milliseconds"),
    "a kind with a line break": (_sent(ENTRY, ops=[OP, {"kind": "x\ny"}]), 422, "/ops/1/kind"),
    "a counter with a line break": (_sent({**ENTRY, "counters": {"a\n": [1, 2]}}), 422, "/measurements/0/counters/a\n"),
    "a time that is none": (_sent({**ENTRY, "conditions": {"time": "soon"}}), 422, "/measurements/0/conditions/time"),
    "a time to come": (
        _sent(ENTRY, {**ENTRY, "conditions": {"time": "2999-01-01"}}),
        422,
        "/measurements/1/conditions/time",
    ),
    "more threads than cores": (_sent(ENTRY, {**ENTRY, "threads": 5}), 422, "/measurements/1/threads"),
    "more spread threads than groups": (
        _sent({**ENTRY, "threads": 3, "affinity": "spread"}),
        422,
        "/measurements/0/threads",
    ),
    "a wrong sample": (_sent({**ENTRY, "seconds": [1.0, None]}), 422, "/measurements/0/seconds/1"),
    "counts for other samples": (_sent({**ENTRY, "counters": {"c": [1]}}), 422, "/measurements/0/counters/c"),
    "one wrong among good ones": (_sent(ENTRY, {**ENTRY, "threads": "1"}), 422, "/measurements/1/threads"),
}


@pytest.mark.parametrize(("sent", "status", "pointer"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_refused_with_a_pointer_and_nothing_is_stored(
    client: FlaskClient, sent: Any, status: int, pointer: str
) -> None:
    response = client.post("/v1/measurements", json=sent)
    assert response.content_type == "application/problem+json"
    problem = response.get_json()
    assert (response.status_code, problem["pointer"]) == (status, pointer), problem
    assert get(client)["total"] == len(MEASURED)


def test_infinite_features_that_a_program_stored_are_listed_as_null(
    client: FlaskClient, settings: ServiceSettings
) -> None:
    op = Op("old", attributes={"m": math.inf, "k": 3})
    with Store.open(settings.store) as store:
        store.add([Measurement(op, MACHINE, Case(4), (Sample(0.1),), {"of": math.nan})])
    page = get(client, kind="old")
    assert [(op["attributes"], op["key"]) for op in page["ops"]] == [({"m": None, "k": 3}, op.key)]
    assert page["measurements"][0]["conditions"] == {"of": None}


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "caf\u00e9"])
def test_a_wrong_idempotency_key_is_refused(client: FlaskClient, key: str) -> None:
    response = client.post("/v1/measurements", json=_sent(ENTRY), headers={"Idempotency-Key": key})
    problem = response.get_json()
    assert (response.status_code, problem["pointer"], problem["in"]) == (422, "/Idempotency-Key", "header")


@pytest.mark.parametrize(
    ("query", "pointer"), [("limit=0", "/limit"), ("limit=x", "/limit"), ("after=-1", "/after"), ("form=long", "/form"),
                           ("colour=red", "/colour"), ("op=", "/op")],
)  # fmt: skip
def test_a_wrong_query_is_refused_with_a_pointer(client: FlaskClient, query: str, pointer: str) -> None:
    response = client.get(f"/v1/measurements?{query}")
    problem = response.get_json()
    assert (response.status_code, problem["pointer"], problem["in"]) == (422, pointer, "query")


def test_limits_hold(settings: ServiceSettings) -> None:
    app = create_app(replace(settings, max_rows=3, max_page=2))
    client = app.test_client()
    assert client.post("/v1/measurements", json=_sent(*[ENTRY] * 4)).get_json()["pointer"] == "/measurements"
    assert client.post("/v1/measurements", json=_sent(ENTRY, ENTRY)).get_json()["pointer"] == "/measurements"
    assert len(get(client, limit=50)["measurements"]) == 2
    app.extensions["threadcast"].store.close()
