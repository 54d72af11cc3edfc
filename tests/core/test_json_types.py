"""Every reader of a JSON document refuses a value of a wrong type as FormatError, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.json_values import retyped
from threadcast.core import Machine, Op, OpGraph, Plan, Trace
from threadcast.core.corun import CoRunTable
from threadcast.core.errors import FormatError
from threadcast.models.registry import Manifest

MACHINE = {"name": "two", "cores": [[0, [0], 0, 0, 0, 1e9], [1, [1], 0, 0, 0, None]], "caches": [[2, 1024, [0, 1]]]}
OP = {
    "kind": "mm", "inputs": [[[2, 3], "float32", [1, 2]], [2, 3], [[2], "int64"]], "outputs": [[4]], "flops": 2.0,
    "bytes": 8, "attributes": {"args": [1, None, {"float": "inf"}]},
}  # fmt: skip
PLACEMENT = {"id": "a", "cores": [0, 1], "threads": 2, "start_s": 0.0, "finish_s": 1.0, "hardware_thread": 1}
DOCUMENTS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "machine": (Machine.from_json, MACHINE),
    "op": (Op.from_json, OP),
    "graph": (
        OpGraph.from_json,
        {
            "schema": "threadcast.graph/1", "edges": [["a", "b"]], "ordering_edges": [["a", "b"]],
            "ops": [{"id": "a", **OP}, {"id": "b", "kind": "relu", "inputs": [[2]], "curve": {"1": 0.5, "2": 1}}],
        },
    ),
    "plan": (
        Plan.from_json,
        {
            "schema": "threadcast.plan/1", "cores": 2, "policy": "p", "lower_bound_s": 1.0, "guarded": ["a"],
            "curves_from": "file", "ops": [PLACEMENT],
        },
    ),
    "trace": (
        Trace.from_json,
        {
            "schema": "threadcast.trace/1", "cores": 2, "policy": "p", "simulated": True, "steps": 2,
            "ops": [PLACEMENT],
        },
    ),
    "co-run table": (
        CoRunTable.from_json,
        {
            "schema": "threadcast.corun/1", "machine": MACHINE,
            "bad_pairs": [{"op": "a", "beside": "b", "slowdown": 2.0}],
        },
    ),
    "manifest": (
        Manifest.from_json,
        {
            "schema": "threadcast.model/1", "version": "r@1", "model": "r", "created": "now", "trained_on": {},
            "metrics": {}, "libraries": {}, "files": {"a.json": {"sha256": "x", "bytes": 3}},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_value_of_a_wrong_type_is_a_format_error(name: str) -> None:
    read, document = DOCUMENTS[name]
    read(document)
    refused = 0
    for changed in retyped(document):
        try:
            read(changed)
        except FormatError:
            refused += 1
    assert refused


@pytest.mark.parametrize("core", [[True, [0], 0, 0, 0, None], [0, [False], 0, 0, 0, None], [0, [0], 0, 0, 0, True]])
def test_a_boolean_is_no_number_of_a_machine(core: list[Any]) -> None:
    with pytest.raises(FormatError, match="a core must be"):
        Machine.from_json({"name": "one", "cores": [core]})


def test_a_frequency_that_is_no_number_is_refused() -> None:
    assert Machine.from_json({"name": "one", "cores": [[0, [0], 0, 0, 0, 1]]}).cores[0].max_hz == 1
    with pytest.raises(FormatError, match="a core must be"):
        Machine.from_json({"name": "one", "cores": [[0, [0], 0, 0, 0, float("nan")]]})
