"""A model that can be counted on, and a service that answers with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threadcast.core import Case, Curve, CurveTable, Machine, Measurement, Op, Source, TensorSpec
from threadcast.core.curve_codec import to_answer
from threadcast.models.base import PerformanceModel
from threadcast.prediction.predictor import LocalPredictor

MACHINE = Machine.uniform("four", 4)
OPS = [Op("mm", (TensorSpec((n, 7)), TensorSpec((7, n))), outputs=(TensorSpec((n, n)),)) for n in (3, 5, 9)]
PATIENT_S = 240.0
"""A deadline that no test reaches: what it bounds is done long before on any machine."""


class SerialShare(PerformanceModel):
    """Amdahl's law with a fixed serial share; measured cases are their medians. Counts how often it is asked."""

    name = "serial_share"

    def __init__(self, share: float = 0.1) -> None:
        self.share = share
        self.asked = 0

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        self.asked += 1
        one_s = (op.flops + 1) / 3e9
        seconds = np.array([one_s * (self.share + (1 - self.share) / case.threads) for case in cases])
        source = [Source.LEARNED] * len(cases)
        for measured in observed:
            index = list(cases).index(measured.case)
            seconds[index], source[index] = measured.seconds, Source.MEASURED
        return Curve(tuple(cases), seconds, seconds / 1.3, seconds * 1.7, tuple(source))

    def to_files(self) -> dict[str, bytes]:
        return {"share.json": json.dumps(self.share).encode()}

    def from_files(self, files: Mapping[str, bytes]) -> SerialShare:
        self.share = json.loads(files["share.json"])
        return self


def local(share: float = 0.1, *, version: str = "serial_share@1") -> LocalPredictor:
    return LocalPredictor(SerialShare(share), MACHINE, {}, version=version)


def answer_of(predictor: LocalPredictor, question: dict[str, Any]) -> dict[str, Any]:
    """What the service answers to `question` when it predicts with `predictor`."""
    ops = [Op.from_json(op) for op in question["ops"]]
    table = predictor.curves(ops, cases=[Case(**case) for case in question["cases"]])
    return {**to_answer(table), "machine": predictor.machine.fingerprint, "ops": [op.key for op in ops]}


def assert_same(first: CurveTable, second: CurveTable) -> None:
    assert first.cases == second.cases
    for name in ("seconds", "low", "high", "source"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), strict=True)


@dataclass
class Service:
    """A prediction service on loopback whose answer a test chooses."""

    url: str
    questions: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    """Those of the requests, one mapping a question."""
    predictor: LocalPredictor = field(default_factory=local)
    status: int = 200
    answer: Callable[[bytes], bytes] = bytes
    answer_headers: dict[str, str] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    """Statuses of the next answers, in place of `status`; each is used once."""
    statuses: list[int] = field(default_factory=list)
    """Those that were answered."""
    before: Callable[[], object] = bool
    """Called before each answer, as to hold it back."""


def open_sockets() -> int:
    """How many sockets this process has open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except OSError:  # the listing's own
            continue
    return found
