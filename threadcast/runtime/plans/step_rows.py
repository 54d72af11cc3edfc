"""Measurements of operators in steps as one JSON document: what a service stores, and what other processes read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.measurement_documents import measurement_of
from threadcast.core.settings import Settings

IN_STEP = "step"
"""The condition "cache" of measurements in a step: an op found caches as the ops before it left them."""

Observed = Mapping[Case, Sequence[float]]
"""What was measured of one op: seconds of each of some steps, by case."""


def service_of(settings: Settings) -> str | None:
    """Return the URL of the service that the setting `engine.feedback` names; None where it names none."""
    feedback: str = settings["engine.feedback"]
    return feedback if feedback.startswith(("http://", "https://")) else None


def measurements(op: Op, machine: Machine, observed: Observed) -> list[Measurement]:
    """Return what was observed of an op now, with the time and the version of PyTorch."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = {"cache": IN_STEP, "torch": _torch(), "time": now}
    return [
        Measurement(op, machine, case, tuple(map(Sample, seconds)), conditions) for case, seconds in observed.items()
    ]


@cache
def _torch() -> str:
    """The version of PyTorch, which may not be imported here; finding it takes a millisecond."""
    return version("torch")


def rows_of(document: Mapping[str, Any]) -> list[Measurement]:
    """Read what `batch_document` has written, or a service's page of measurements of the member "machine".

    FormatError or InvalidInput for an op, a machine or a measurement that cannot be.
    """
    machine = Machine.from_json(document["machine"])
    listed = [Op.from_json(op, pointer="") for op in document["ops"]]
    ops: dict[int | str, Op] = {**dict(enumerate(listed)), **{op.key: op for op in listed}}
    return [measurement_of(entry, ops[entry["op"]], machine) for entry in document["measurements"]]
