"""Builds requests for curves in the service's format: in parts, and conditional if they were made before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from threadcast.core import Machine, Op
from threadcast.prediction import arrow_curves
from threadcast.prediction.answers import Forecasts, max_answer_bytes, read_curves, read_stream
from threadcast.prediction.bounded_request import Request
from threadcast.prediction.http_answer import JSON, Answer
from threadcast.prediction.lru_cache import LruCache

PATH = "/v1/predictions"

PART_OPS, PART_POINTS = 5_000, 500_000
"""Most ops and most points (ops times cases) of a request: a quarter of what a service allows by default."""

JSON_POINTS = 34_000
"""Most points of a request whose answer is JSON: 2.4 MB. No other thread runs while `json` reads it, which takes some
30 ms (2-core AMD EPYC virtual machine); so late may a caller notice that its time is up. Arrow is read in 3 ms per
680,000 points."""

REMEMBERED = 64
"""Most entity tags of answers that are remembered."""


@dataclass(frozen=True, slots=True)
class TaggedAnswer:
    """The entity tag of an answer, by which a later request asks whether it has changed, and the answer's model."""

    etag: str
    model: str


class Questions:
    """Builds questions to `model` (None: the service's default) for whole curves on one machine. Thread-safe."""

    def __init__(self, machine: Machine, model: str | None) -> None:
        self._machine, self._cases, self._model = machine, machine.cases(), model
        self._forms = (arrow_curves.MEDIA_TYPE, JSON) if arrow_curves.is_available() else (JSON,)
        self._tagged: LruCache[bytes, TaggedAnswer] = LruCache(REMEMBERED)

    def parts(self, ops: Sequence[Op]) -> Iterator[Sequence[Op]]:
        """Return `ops` in parts, each small enough for one request."""
        most = PART_POINTS if self._forms[0] == arrow_curves.MEDIA_TYPE else JSON_POINTS
        size = max(1, min(PART_OPS, most // len(self._cases)))
        return (ops[start : start + size] for start in range(0, len(ops), size))

    def body(self, ops: Sequence[Op]) -> bytes:
        """Return the request body that asks for these ops."""
        question = {
            "machine": self._machine.to_json(),
            "ops": [op.to_json() for op in ops],
            "cases": [{"threads": case.threads, "affinity": case.affinity.value} for case in self._cases],
        }
        if self._model is not None:
            question["model"] = self._model
        return json.dumps(question, separators=(",", ":")).encode()

    def request(self, body: bytes, ops: int, *, etag: str | None = None) -> Request:
        """Return the request with this body for `ops` ops; safe to repeat, as predictions change nothing."""
        most = max_answer_bytes(ops, len(self._cases))
        return Request(PATH, body, most, safe=True, etag=etag, forms=self._forms)

    def last_answer(self, body: bytes) -> TaggedAnswer | None:
        """Return tag and model of the latest answer to this body; None if it had no tag or is not remembered."""
        return self._tagged.get(_digest(body))

    def remember(self, body: bytes, answer: TaggedAnswer) -> None:
        """Remember tag and model of the answer to this body; of too many, the least recently used is forgotten."""
        self._tagged.put(_digest(body), answer)

    def reader(self, ops: Sequence[Op]) -> Callable[[Answer], tuple[Forecasts | None, str | None]]:
        """Return a function that reads an answer about these ops into (forecasts, tag); None: nothing has changed."""
        keys = [op.key for op in ops]

        def read(answer: Answer) -> tuple[Forecasts | None, str | None]:
            if answer.content is None:
                return None, answer.etag
            reader = read_stream if answer.form == arrow_curves.MEDIA_TYPE else read_curves
            if answer.form == JSON:
                self._forms = (JSON,)  # the service offers nothing else: ask in small parts from now on
            return reader(answer.content, keys=keys, cases=self._cases, machine=self._machine), answer.etag

        return read


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
