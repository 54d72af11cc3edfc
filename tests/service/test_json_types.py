"""A value of a wrong JSON type in a request's body is the client's fault, wherever it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.json_values import retyped
from tests.service.service_data import MACHINE, OPS

PAIR = {"name": "pair", "cores": [[0, [0], 0, 0, 0, 1e9], [1, [1], 0, 0, 0, None]], "caches": [[2, 1024, [0, 1]]]}
OP = {"kind": "mm", "inputs": [[[2, 3], "float32"]], "attributes": {"a": [1]}}
GRAPH = {
    "schema": "threadcast.graph/1", "edges": [["a", "b"]],
    "ops": [{"id": "a", "kind": "mm", "curve": {"1": 1.0, "2": 0.6}}, {"id": "b", "kind": "mm", "curve": {"1": 0.5}}],
}  # fmt: skip
RUNNING = [{"id": "a", "cores": [0], "remaining_s": 0.5, "threads": 1, "hardware_thread": 0}]
ENTRY = {"machine": MACHINE.fingerprint, "op": OPS[0].key, "threads": 2, "affinity": "compact"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/predictions",
        {"ops": [OP, OPS[0].key], "machine": PAIR, "cases": [{"threads": 2, "affinity": "compact"}],
         "model": "champion"},
    ),
    ("/v1/predictions", {"graph": {**GRAPH, "ops": [{"id": "a", **OP}], "edges": []}, "machine": MACHINE.fingerprint}),
    ("/v1/plans", {"graph": GRAPH, "cores": 2, "machine": PAIR, "policy": "fifo", "options": {"inter": 2}}),
    ("/v1/plans", {"graph": GRAPH, "cores": 2, "policy": "manual_grid", "options": {"inter": [1, 2]}}),
    ("/v1/decisions", {"graph": GRAPH, "cores": 2, "ready": ["b"], "running": RUNNING, "idle": [1]}),
    ("/v1/decisions", {"context": "x", "ready": ["a"]}),
    (
        "/v1/measurements",
        {"machine": MACHINE.fingerprint, "machines": [PAIR], "ops": [OP],
         "measurements": [{**ENTRY, "seconds": [1.0], "counters": {"c": [1]}, "conditions": {"cache": "warm"}}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), BODIES, ids=range(len(BODIES)))
def test_a_value_of_a_wrong_type_is_a_problem_of_the_client(
    client: FlaskClient, path: str, body: dict[str, Any]
) -> None:
    for changed in retyped(body):
        answer = client.post(path, data=json.dumps(changed), content_type="application/json")
        assert answer.status_code in (200, 201, 404, 422), (answer.text, changed)
        if answer.status_code >= 400:
            assert answer.content_type == "application/problem+json"


@pytest.mark.parametrize("machine", [[], {}, ["a"], {"a": 1}, 1, None])
def test_a_machine_of_an_entry_that_is_no_fingerprint_is_pointed_to(client: FlaskClient, machine: object) -> None:
    entry = {**ENTRY, "machine": machine, "seconds": [1.0]}
    answer = client.post("/v1/measurements", json={"measurements": [entry]})
    assert answer.status_code == 422
    assert answer.get_json()["pointer"] == "/measurements/0/machine"
