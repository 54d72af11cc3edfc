"""Curves from the prediction service, without ever waiting longer for it than was allowed."""

from __future__ import annotations

import json
import math
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from threadcast.core import Case, CurveTable, Machine, Op
from threadcast.core.errors import DeadlineExceeded, InvalidInput, ModelError, ServiceError
from threadcast.scheduler.bounded_request import BoundedClient
from threadcast.scheduler.curve_answer import max_answer_bytes, read_curves
from threadcast.scheduler.curve_cache import CurveCache, at_cases, empty_table
from threadcast.scheduler.predictor import Predictor

PATH = "/v1/predictions"
FALLBACK_MARK = " (local fallback)"
"""Ends `table.model` where the fallback answered."""


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """What a RemotePredictor has done so far: answers (tables) by where they came from."""

    fetched: int = 0
    """Answers for which the service was asked and answered well."""
    cached: int = 0
    """Answers given without asking."""
    fallbacks: int = 0
    """Answers of the fallback, since the service gave none that could be used."""
    source_of_curves: str = ""
    """Of the latest answer: "service", "cache" or "fallback"."""
    model: str = ""
    """`table.model` of the latest answer."""
    last_error: ServiceError | None = None
    """Why the latest request failed; None when it did not."""


class RemotePredictor:
    """Asks the service at `url` for curves on `machine`, and `fallback` when that gives no usable answer in time.

    `deadline_s` bounds each call's wait for the network in total: name lookup, connecting, TLS, and an answer
    that trickles in. Whole curves are kept by op key and model version; when the service's model moves on, the curves
    of the old version are dropped, so that a table never mixes two. An answer that is not exactly what was asked for
    (shape, order, finite times) is refused. A table comes whole from the service or whole from the
    fallback, and `table.model` and `status` say which. Where the fallback cannot answer either or there is none,
    ServiceError and its kinds are raised.

    `model` is the alias or "name@version" asked for; None: the service's default. The machine is sent in full, so
    the service need not have met it. Safe to use from threads, which share the cache and never wait for one another's
    requests.
    """

    def __init__(
        self,
        url: str,
        machine: Machine,
        *,
        deadline_s: float = 1.0,
        fallback: Predictor | None = None,
        model: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if not (deadline_s > 0 and math.isfinite(deadline_s)):
            raise InvalidInput(f"deadline_s={deadline_s!r} must be a finite number above 0")
        if fallback is not None and fallback.machine != machine:
            raise InvalidInput(
                f"the fallback predicts for {fallback.machine.fingerprint}, not for {machine.fingerprint}"
            )
        self.machine = machine
        self.deadline_s = deadline_s
        self._client = BoundedClient(url, ssl_context=ssl_context)
        self._fallback, self._model = fallback, model
        self._cases = machine.cases()
        self._cache = CurveCache(self._cases)
        self._status, self._lock = RemoteStatus(), threading.Lock()

    @property
    def status(self) -> RemoteStatus:
        """What happened so far; a snapshot."""
        return self._status

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return one row an op over `cases` (None: all of the machine's); InvalidInput for a case it does not have."""
        at_cases(empty_table(self._cases), cases)  # a wrong case is the caller's error, not the service's
        keys = [op.key for op in ops]
        if not ops:
            return at_cases(empty_table(self._cases, model=self._cache.model), cases)
        table = self._cache.get(keys)
        if table is not None:
            self._note("cache", table.model)
            return at_cases(table, cases)
        try:
            table = self._fetch_missing(ops, keys)
        except ServiceError as error:
            if self._fallback is None:
                self._note("", "", error)
                raise
            try:
                table = self._fallback.curves(ops, cases=cases)
            except ModelError as second:
                self._note("", "", error)
                raise type(error)(f"{error}; nor can the local model answer: {second}") from error
            table = replace(table, model=table.model + FALLBACK_MARK)
            self._note("fallback", table.model, error)
            return table
        self._note("service", table.model)
        return at_cases(table, cases)

    def _fetch_missing(self, ops: Sequence[Op], keys: Sequence[str]) -> CurveTable:
        """Complete the cache, twice where the first answer came from a newer model, and read all from it."""
        until_s = time.monotonic() + self.deadline_s
        for _ in range(2):
            missing = self._cache.missing(keys)
            if missing:
                answer = self._fetch([ops[i] for i in missing], until_s)
                self._cache.add([keys[i] for i in missing], answer)
            table = self._cache.get(keys)
            if table is not None:
                return table
        raise ServiceError("the service changed its model while it was asked; ask again")

    def _fetch(self, ops: Sequence[Op], until_s: float) -> CurveTable:
        question = {
            "machine": self.machine.to_json(),
            "ops": [op.to_json() for op in ops],
            "cases": [{"threads": case.threads, "affinity": case.affinity.value} for case in self._cases],
        }
        if self._model is not None:
            question["model"] = self._model
        keys = [op.key for op in ops]
        body = json.dumps(question, separators=(",", ":")).encode()
        remaining_s = until_s - time.monotonic()
        if remaining_s <= 0:
            raise DeadlineExceeded(f"no answer from {self._client.url} within {self.deadline_s:g} s")
        return self._client.post(
            PATH, body, deadline_s=remaining_s, max_answer_bytes=max_answer_bytes(len(ops), len(self._cases)),
            read=lambda content: read_curves(content, keys=keys, cases=self._cases, machine=self.machine),
        )  # fmt: skip

    def _note(self, source: str, model: str, error: ServiceError | None = None) -> None:
        counter = {"service": "fetched", "cache": "cached", "fallback": "fallbacks"}.get(source)
        with self._lock:
            counted = {counter: getattr(self._status, counter) + 1} if counter else {}
            self._status = replace(
                self._status, **counted, source_of_curves=source, model=model,
                last_error=self._status.last_error if source == "cache" else error,
            )  # fmt: skip
