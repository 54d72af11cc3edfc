"""What goes between a service process and its planning processes: JSON, and arrays as they lie in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from threadcast.core import Affinity, Case, CurveTable, Machine, OpGraph
from threadcast.scheduler.policies import Problem

LENGTH_BYTES = 8
"""Before each message: its length, as a big-endian number."""

_ARRAYS = {"seconds": np.float64, "low": np.float64, "high": np.float64, "source": np.int8}


def framed(content: bytes) -> bytes:
    """A message with its length before it."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def question(problem: Problem, policy: str, options: Mapping[str, Any]) -> bytes:
    """The message that asks for a plan."""
    curves = problem.curves
    head = json.dumps({
        "graph": problem.graph.to_json(), "machine": problem.machine.to_json(), "model": curves.model,
        "cases": [[case.threads, case.affinity.value] for case in curves.cases], "policy": policy,
        "options": dict(options),
    }).encode()  # fmt: skip
    arrays = [np.ascontiguousarray(getattr(curves, name), kind).tobytes() for name, kind in _ARRAYS.items()]
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "big"), head, *arrays])


def read_question(message: bytes) -> tuple[Problem, str, dict[str, Any]]:
    """The problem, policy and options in it."""
    size = int.from_bytes(message[:LENGTH_BYTES], "big")
    asked = json.loads(message[LENGTH_BYTES : LENGTH_BYTES + size])
    graph, machine = OpGraph.from_json(asked["graph"]), Machine.from_json(asked["machine"])
    cases = tuple(Case(threads, Affinity(affinity)) for threads, affinity in asked["cases"])
    shape, at, arrays = (len(graph), len(cases)), LENGTH_BYTES + size, []
    for kind in _ARRAYS.values():
        array = np.frombuffer(message, kind, shape[0] * shape[1], at)
        at += array.nbytes
        arrays.append(array.reshape(shape).copy())
    seconds, low, high, source = arrays
    table = CurveTable(cases, seconds, low, high, source, asked["model"])
    return Problem(graph, table, machine), asked["policy"], asked["options"]
