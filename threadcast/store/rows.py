"""Conversion between objects and the rows of the store's tables."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from math import isnan, nan
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, Machine, Measurement, Op, OpGraph, Sample
from threadcast.core.errors import InvalidInput

Row = dict[str, Any]
_FLOAT = np.dtype("<f8")
_compact = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes an encoder each time


def op_row(op: Op) -> Row:
    """The columns of one op."""
    return {"key": op.key, "kind": op.kind, "document": json_text(op.to_json(), f"op {op.key}")}


def machine_row(machine: Machine) -> Row:
    """The columns of one machine."""
    return {
        "fingerprint": machine.fingerprint,
        "document": json_text(machine.to_json(), f"machine {machine.fingerprint}"),
    }


def graph_row(name: str, graph: OpGraph) -> Row:
    """The columns of one graph."""
    return {"name": name, "document": json_text(graph.to_json(), f"graph {name}")}


def measurement_row(measurement: Measurement) -> Row:
    """The columns of one measurement, without those that refer to other tables."""
    what = f"a measurement of {measurement.op.key} at {measurement.case}"
    samples = measurement.samples
    names = dict.fromkeys(name for sample in samples for name in sample.counters)
    values = [[sample.seconds for sample in samples]]
    values += [[nan if (v := s.counters.get(name)) is None else v for s in samples] for name in names]
    return {
        "threads": measurement.case.threads,
        "affinity": measurement.case.affinity.value,
        "sample_count": len(samples),
        "counters": json_text(list(names), what) if names else "[]",
        "samples": b"".join([struct.pack(f"<{len(of_one)}d", *of_one) for of_one in values]),
        "conditions": json_text(dict(measurement.conditions), what),
    }


def measurement_reader(ops: Mapping[int, Op], machines: Mapping[int, Machine]) -> Callable[[Any], Measurement]:
    """A function that converts a row of the measurements table to a measurement; ValueError for a damaged row.

    `ops` and `machines` are by row id.
    """
    cases: dict[tuple[int, str], Case] = {}

    def read(row: Any) -> Measurement:
        where = (row.threads, row.affinity)
        if where not in cases:
            cases[where] = Case(*where)
        values = np.frombuffer(row.samples, dtype=_FLOAT).reshape(-1, row.sample_count)
        samples = tuple(_samples(values, json.loads(row.counters)))
        conditions = json.loads(row.conditions)
        return Measurement(
            ops[row.op_id], machines[row.machine_id], cases[where], samples, conditions, number=row.id,
            stored_s=row.stored_s,
        )  # fmt: skip

    return read


def _samples(values: NDArray[np.float64], counters: list[str]) -> Iterable[Sample]:
    seconds, *counts = values.tolist()
    if not counters:
        return map(Sample, seconds)
    if np.isnan(values).any():
        counts = [[None if isnan(count) else count for count in row] for row in counts]
    return (Sample(s, dict(zip(counters, row, strict=True))) for s, row in zip(seconds, zip(*counts), strict=True))


def json_text(document: Any, what: str) -> str:
    """Compact JSON; InvalidInput naming `what` when the document is not JSON."""
    try:
        return _compact(document)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what} cannot be stored: {error}; use JSON values only") from error


class Document(Protocol):
    """A class that can be read from JSON."""

    @classmethod
    def from_json(cls, document: Any) -> Self: ...


D = TypeVar("D", bound=Document)


def read(kind: type[D], texts: Mapping[int, str]) -> dict[int, D]:
    """The objects of class `kind` in these JSON texts, by row id.

    ValueError, TypeError or KeyError where a text is not such an object.
    """
    return {row_id: kind.from_json(json.loads(text)) for row_id, text in texts.items()}
