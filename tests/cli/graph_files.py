"""A graph of four ops with curves, as a file, and the plan that the command makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.commands import invoke

GRAPH: dict[str, Any] = {
    "schema": "threadcast.graph/1",
    "ops": [
        {"id": "first", "kind": "convolution", "inputs": [], "curve": {"1": 0.010, "2": 0.006, "8": 0.0025}},
        {"id": "left", "kind": "mm", "inputs": [], "curve": {"1": 0.004, "8": 0.002}},
        {"id": "right", "kind": "mm", "inputs": [], "curve": {"1": 0.003, "4": 0.002}},
        {"id": "join", "kind": "add", "inputs": [], "curve": {"1": 0.001}},
    ],
    "edges": [["first", "left"], ["first", "right"], ["left", "join"], ["right", "join"]],
}


def written(folder: Path, **changes: Any) -> str:
    path = folder / "graph.json"
    path.write_text(json.dumps({**GRAPH, **changes}))
    return str(path)


def document_of(graph: str, *, cores: int) -> dict[str, Any]:
    result = invoke("plan", graph, "--cores", str(cores), "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
