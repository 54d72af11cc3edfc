"""Builds requests for curves in the service's format, in parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from threadcast.core import Machine, Op
from threadcast.prediction import arrow_curves
from threadcast.prediction.answers import Forecasts, max_answer_bytes, read_curves, read_stream
from threadcast.prediction.bounded_request import Request
from threadcast.prediction.http_answer import JSON, Answer

PATH = "/v1/predictions"

PART_OPS, PART_POINTS = 5_000, 500_000
"""Most ops and most points (ops times cases) of a request: a quarter of what a service allows by default."""

JSON_POINTS = 34_000
"""Most points of a request whose answer is JSON: 2.4 MB. No other thread runs while `json` reads it, which takes some
30 ms (2-core AMD EPYC virtual machine); so late may a caller notice that its time is up. Arrow is read in 3 ms per
680,000 points."""


class Questions:
    """Builds questions to `model` (None: the service's default) for whole curves on one machine. Thread-safe."""

    def __init__(self, machine: Machine, model: str | None) -> None:
        self._machine, self._cases, self._model = machine, machine.cases(), model
        self._forms = (arrow_curves.MEDIA_TYPE, JSON) if arrow_curves.is_available() else (JSON,)

    def parts(self, ops: Sequence[Op]) -> Iterator[Sequence[Op]]:
        """Return `ops` in parts, each small enough for one request."""
        most = PART_POINTS if self._forms[0] == arrow_curves.MEDIA_TYPE else JSON_POINTS
        size = max(1, min(PART_OPS, most // len(self._cases)))
        return (ops[start : start + size] for start in range(0, len(ops), size))

    def request(self, ops: Sequence[Op]) -> Request:
        """Return the request that asks for these ops; safe to repeat, as predictions change nothing."""
        question = {
            "machine": self._machine.to_json(),
            "ops": [op.to_json() for op in ops],
            "cases": [{"threads": case.threads, "affinity": case.affinity.value} for case in self._cases],
        }
        if self._model is not None:
            question["model"] = self._model
        body, most = json.dumps(question, separators=(",", ":")).encode(), max_answer_bytes(len(ops), len(self._cases))
        return Request(PATH, body, most, safe=True, forms=self._forms)

    def reader(self, ops: Sequence[Op]) -> Callable[[Answer], Forecasts]:
        """Return a function that reads an answer about these ops."""
        keys = [op.key for op in ops]

        def read(answer: Answer) -> Forecasts:
            reader = read_stream if answer.form == arrow_curves.MEDIA_TYPE else read_curves
            if answer.form == JSON:
                self._forms = (JSON,)  # the service offers nothing else: ask in small parts from now on
            return reader(answer.content, keys=keys, cases=self._cases, machine=self._machine)

        return read
