"""Measurements as JSON, one array of samples for each op and case; ops and machines are named, not contained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from threadcast.core.case import Affinity, Case
from threadcast.core.errors import FormatError
from threadcast.core.machine import Machine
from threadcast.core.measurement import Measurement, Sample
from threadcast.core.op import Op


def measurement_document(m: Measurement) -> dict[str, Any]:
    """The measurement as JSON: seconds, and for each counter an array of counts, None where it was not read."""
    names = dict.fromkeys(name for sample in m.samples for name in sample.counters)
    document: dict[str, Any] = {
        "machine": m.machine.fingerprint, "op": m.op.key, "threads": m.case.threads,
        "affinity": m.case.affinity.value, "seconds": [sample.seconds for sample in m.samples],
    }  # fmt: skip
    if names:
        document["counters"] = {name: [sample.counters.get(name) for sample in m.samples] for name in names}
    if m.conditions:
        document["conditions"] = dict(m.conditions)
    return document


def batch_document(measured: Sequence[Measurement]) -> dict[str, Any]:
    """The body of POST /v1/measurements for measurements of one machine, which name ops by their position."""
    ops = {m.op.key: m.op for m in measured}
    position = {key: i for i, key in enumerate(ops)}
    documents = [measurement_document(m) | {"op": position[m.op.key]} for m in measured]
    for document in documents:
        del document["machine"]
    return {
        "machine": measured[0].machine.to_json(), "ops": [op.to_json() for op in ops.values()],
        "measurements": documents,
    }  # fmt: skip


def measurement_of(document: Mapping[str, Any], op: Op, machine: Machine, *, pointer: str = "") -> Measurement:
    """The measurement that `measurement_document` wrote. InvalidInput where its values cannot be measured ones,
    FormatError below `pointer` where a counter has not one count a sample."""
    seconds, counters = document["seconds"], document.get("counters", {})
    for name, counts in counters.items():
        if len(counts) != len(seconds):
            raise FormatError(f"give {len(seconds)} counts, one a sample", pointer=f"{pointer}/counters/{name}")
    samples = tuple(Sample(s, {name: counts[k] for name, counts in counters.items()}) for k, s in enumerate(seconds))
    case = Case(document["threads"], Affinity(document["affinity"]))
    return Measurement(op, machine, case, samples, document.get("conditions", {}))
