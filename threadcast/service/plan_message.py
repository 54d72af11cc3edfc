"""Messages between a service process and its planning processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from threadcast.core import Machine, OpGraph
from threadcast.core.curve_codec import from_bytes, to_bytes
from threadcast.scheduler.policies import Problem

LENGTH_BYTES = 8
"""Before each message: its length, as a big-endian number."""


def framed(content: bytes) -> bytes:
    """A message with its length before it."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def question(problem: Problem, policy: str, options: Mapping[str, Any]) -> bytes:
    """The message that asks for a plan."""
    head = json.dumps({
        "graph": problem.graph.to_json(), "machine": problem.machine.to_json(), "policy": policy,
        "options": dict(options),
    }).encode()  # fmt: skip
    return framed(head) + to_bytes(problem.curves)


def read_question(message: bytes) -> tuple[Problem, str, dict[str, Any]]:
    """The problem, the policy and its options in a message."""
    end = LENGTH_BYTES + int.from_bytes(message[:LENGTH_BYTES], "big")
    asked = json.loads(message[LENGTH_BYTES:end])
    graph, machine = OpGraph.from_json(asked["graph"]), Machine.from_json(asked["machine"])
    return Problem(graph, from_bytes(memoryview(message)[end:]), machine), asked["policy"], asked["options"]
