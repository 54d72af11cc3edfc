"""Which posted measurements change forecasts, and what the answer says of those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import MACHINE, MEASURED, OPS
from threadcast.core import Case, Op
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

DAYS = 4
CASE = Case(4)
BEFORE_S = {m.op.key: m.seconds for m in MEASURED if m.case == CASE}


@pytest.fixture
def client(tmp_path: Path, models: Path) -> Iterator[FlaskClient]:
    """A service over what a campaign recorded on some days, with rotated caches."""
    with Store.open(tmp_path / "store.sqlite") as store:
        for day in range(DAYS):
            time = (datetime.now(UTC) - timedelta(days=DAYS - day)).isoformat()
            store.add([replace(m, conditions={"cache": "rotated", "time": time}) for m in MEASURED])
    app = create_app(ServiceSettings(store=tmp_path / "store.sqlite", models=models))
    yield app.test_client()
    app.extensions["threadcast"].store.close()


def post(client: FlaskClient, *seconds: float, op: Op = OPS[0], **conditions: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"op": op.key, "threads": CASE.threads, "seconds": list(seconds)}
    entry |= {"conditions": conditions} if conditions else {}
    response = client.post("/v1/measurements", json={"machine": MACHINE.fingerprint, "measurements": [entry]})
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.get_json()
    return document


def forecast(client: FlaskClient, op: Op = OPS[0]) -> float:
    answer = client.get(f"/v1/curves/{op.key}").get_json()
    seconds: float = answer["seconds"][0][answer["cases"].index({"threads": 4, "affinity": "compact"})]
    return seconds


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_three_times_without_conditions_change_the_forecast(client: FlaskClient, factor: float, at_once: bool) -> None:
    before_s = BEFORE_S[OPS[0].key]
    assert forecast(client) == pytest.approx(before_s)
    times = [factor * before_s * noise for noise in (1.0, 1.02, 0.99)]
    for some in [times] if at_once else [[s] for s in times]:
        assert post(client, *some) == {"measurements": 1, "samples": len(some), "counted": 1}
    assert forecast(client) == pytest.approx(factor * before_s, rel=0.05)
    assert forecast(client, OPS[1]) == pytest.approx(BEFORE_S[OPS[1].key])


def test_what_cannot_count_is_stored_and_the_answer_says_why(client: FlaskClient) -> None:
    before_s = BEFORE_S[OPS[0].key]
    for _ in range(3):
        answer = post(client, 3 * before_s, cache="warm")
        (left,) = answer.pop("uncounted")
        assert answer == {"measurements": 1, "samples": 1, "counted": 0}
        assert (left["measurements"], left["op"]) == (1, OPS[0].key)
        assert "its caches were warm" in left["detail"]
    assert forecast(client) == pytest.approx(before_s)
    long_ago = (datetime.now(UTC) - timedelta(days=400)).isoformat()
    late = post(client, before_s, time=long_ago)
    assert (late["counted"], "much older" in late["uncounted"][0]["detail"]) == (0, True)
    assert (
        client.get("/v1/measurements", query_string={"op": OPS[0].key}).get_json()["total"]
        == len(MACHINE.cases()) * DAYS + 4
    )


def test_of_one_request_each_measurement_is_counted_or_not(client: FlaskClient) -> None:
    entries = [
        {
            "op": OPS[i].key,
            "threads": 4,
            "seconds": [BEFORE_S[OPS[i].key]],
            "conditions": {"cache": cache} if cache else {},
        }
        for i, cache in enumerate(("rotated", "cold", None, "cold"))
    ]
    body = {"machine": MACHINE.fingerprint, "measurements": entries}
    first = client.post("/v1/measurements", json=body, headers={"Idempotency-Key": "one"})
    answer = first.get_json()
    assert (answer["measurements"], answer["counted"]) == (4, 2)
    assert [left["measurements"] for left in answer["uncounted"]] == [2]
    again = client.post("/v1/measurements", json=body, headers={"Idempotency-Key": "one"})
    assert again.get_json() == answer
