"""What the service's tests serve: a machine, a graph and synthetic measurements of its ops."""

from __future__ import annotations

from typing import Any

from threadcast.core import Case, Machine, Measurement, Op, OpGraph, Sample, TensorSpec
from threadcast.core.graph import Edge

MACHINE = Machine.uniform("bench", 4, group_size=2)
OPS = tuple(
    Op("mm", (TensorSpec((n, n)), TensorSpec((n, n))), outputs=(TensorSpec((n, n)),)) for n in (64, 128, 256, 384, 512)
)
UNSEEN = Op("mm", (TensorSpec((200, 200)), TensorSpec((200, 200))), outputs=(TensorSpec((200, 200)),))
GRAPH = OpGraph(("a", "b", "c", "d"), OPS[:4], (Edge(0, 2), Edge(1, 2), Edge(2, 3)))


def measure(op: Op, case: Case, machine: Machine = MACHINE) -> Measurement:
    """Three samples around Amdahl's law with a serial share of a tenth."""
    lone_s = op.flops / 2e10 * (0.1 + 0.9 / case.threads) + 2e-6
    samples = tuple(Sample(lone_s * factor, {"instructions": op.flops, "cycles": None}) for factor in (1.0, 1.1, 0.95))
    return Measurement(op, machine, case, samples, {"cache": "warm", "converged": True})


MEASURED = tuple(measure(op, case) for op in OPS for case in MACHINE.cases())


def graph_document(**curves: dict[str, float]) -> dict[str, Any]:
    """GRAPH as a document, with these curves."""
    document = GRAPH.to_json()
    for op in document["ops"]:
        if op["id"] in curves:
            op["curve"] = curves[op["id"]]
    return document


CURVES = {
    "a": {"1": 4.0, "2": 2.1, "4": 1.2},
    "b": {"1": 3.0, "2": 1.6, "4": 1.0},
    "c": {"1": 1.0, "2": 0.9, "4": 1.5},
    "d": {"1": 2.0, "2": 1.1, "4": 0.6},
}
