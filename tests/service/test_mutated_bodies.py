"""Good requests with one or a few things changed: every answer is a good one or a problem of the client's."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.service_data import CURVES, MACHINE, OPS, UNSEEN, graph_document

BODIES = int(os.environ.get("BODIES", "1000"))
"""`make bench-service` sends 10,000."""

RUNNING = [{"id": "a", "cores": [0], "remaining_s": 0.5, "threads": 1, "hardware_thread": 0}]
PAIR = {"name": "pair", "cores": [[0, [0], 0, 0, 0, 1e9], [1, [1], 0, 0, 0, None]], "caches": [[2, 1024, [0, 1]]]}
OP = {**UNSEEN.to_json(), "attributes": {"args": [1, None, {"float": "inf"}]}}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/predictions", {"ops": [OP, OPS[0].key], "machine": MACHINE.to_json(), "cases": [{"threads": 4}]}),
    ("/v1/predictions", {"graph": graph_document(), "model": "roofline@1"}),
    ("/v1/plans", {"graph": graph_document(**CURVES), "cores": 2, "policy": "fifo", "options": {"inter": 2}}),
    ("/v1/plans", {"graph": graph_document(**CURVES), "machine": PAIR, "policy": "manual_grid"}),
    (
        "/v1/decisions",
        {"graph": graph_document(**CURVES), "cores": 4, "ready": ["b"], "running": RUNNING, "idle": [1]},
    ),
    (
        "/v1/measurements",
        {"machines": [PAIR], "machine": MACHINE.fingerprint, "ops": [OP],
         "measurements": [{"op": 0, "threads": 2, "affinity": "compact", "seconds": [1.0, 2.0],
                           "counters": {"c": [1, None]}, "conditions": {"cache": "warm"}}]},
    ),
]  # fmt: skip

SCALARS = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1e308,
    -1e-320,
    0.5,
    "",
    "a",
    "\x00",
    "\u202e",
    "~/",
    "mm",
]
NESTED = [[], {}, [[]], [0], ["a"], [None], {"": None}, {"threads": 1}, [[0, 0]]]
JUNK = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(NESTED).map(copy.deepcopy),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield document, key
            yield from places(value)
    elif isinstance(document, list):
        for key, value in enumerate(document):
            yield document, key
            yield from places(value)


@st.composite
def changed(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    path, good = draw(st.sampled_from(GOOD))
    body: dict[str, Any] = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(body))
        if not found:
            break
        container, key = draw(st.sampled_from(found))
        change = draw(st.sampled_from(["replace", "replace", "remove", "repeat", "add"]))
        if change == "replace":
            container[key] = draw(JUNK)
        elif change == "remove":
            del container[key]
        elif isinstance(container, list):
            container.append(container[key] if change == "repeat" else draw(JUNK))
        else:
            container[draw(st.text(max_size=4)) if change == "add" else f"{key}{key}"] = draw(JUNK)
    return path, body


@pytest.mark.parametrize(("path", "body"), GOOD, ids=range(len(GOOD)))
def test_the_requests_that_are_changed_below_are_good(client: FlaskClient, path: str, body: dict[str, Any]) -> None:
    assert client.post(path, json=body).status_code in (200, 201)


@settings(max_examples=BODIES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=changed())
def test_a_changed_request_is_answered_or_refused_and_never_fails(
    client: FlaskClient, request: tuple[str, dict[str, Any]]
) -> None:
    path, body = request
    response = client.post(path, data=json.dumps(body), content_type="application/json")
    assert response.status_code in (200, 201, 404, 422), response.text
    if response.status_code >= 400:
        assert response.content_type == "application/problem+json"
        assert response.get_json()["detail"]
