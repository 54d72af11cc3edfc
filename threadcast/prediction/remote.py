"""Curves from a prediction service, by a deadline: from the service, the cache or a fallback."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from threadcast.core import Case, CurveTable, Machine, Op
from threadcast.core.errors import InvalidInput, ModelError, ServiceError
from threadcast.core.secret import Secret
from threadcast.core.settings import Settings
from threadcast.prediction.bounded_request import BoundedClient
from threadcast.prediction.fallback import FirstOf, roofline
from threadcast.prediction.fork_lock import ForkLock
from threadcast.prediction.predictor import Predictor
from threadcast.prediction.questions import Questions, TaggedAnswer
from threadcast.prediction.refresher import Refresher
from threadcast.prediction.service_client import ServiceClient
from threadcast.prediction.versioned_curves import AgedCurves, VersionedCurves

FALLBACK_MARK = " (local fallback)"
"""Suffix of `table.model` where the fallback answered."""

FALLBACK_SHARE = 0.2
"""Share of the deadline that is left to the fallback's computing."""

FRESH_S = 60.0
"""Age up to which curves are answered without asking the service whether they still hold. A convention: a model or
new measurements reach every scheduler in about a minute, at one small request a minute."""


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """Counts of a RemotePredictor's answers (tables) by where they came from, and about the latest one."""

    fetched: int = 0
    """Answers for which the service was asked successfully."""
    cached: int = 0
    """Answers from the cache, without asking the service."""
    stale: int = 0
    """Of these, those whose curves were older than `fresh_s` or of the model before."""
    fallbacks: int = 0
    """Answers of the fallback, because the service gave none that could be used."""
    refreshed: int = 0
    """Successful requests in the background, for curves that had become old."""
    source_of_curves: str = ""
    """Of the latest answer: "service", "cache", "stale cache" or "fallback"; empty where there was none."""
    model: str = ""
    """`table.model` of the latest answer."""
    age_s: float = 0.0
    """Seconds since the service gave the oldest curve of the latest answer."""
    last_error: ServiceError | None = None
    """Why the latest request failed; None when it did not."""


class RemotePredictor:
    """Asks the service at `url` for curves on `machine`, and `fallback` when that gives no usable answer in time.

    `deadline_s` bounds each call in total, however many requests it takes: name lookup, connecting, TLS, an answer that
    trickles in, waiting before another attempt. A fifth of it is left for the fallback. Whole curves are kept by op key
    and model version. Those older than `fresh_s` are answered at once all the same, and asked for anew by a helper
    thread. While the service keeps failing it is left alone and the fallback answers at once. An answer that is not
    exactly what was asked for (shape, order, finite times) is refused. A table comes whole from one model version of
    the service or whole from the fallback, and `table.model` and `status` say which.

    Where `fallback` cannot answer, or there is none, a roofline of the machine does, which can always; without
    `last_resort` ServiceError and its kinds are raised then. `model` is the alias or "name@version" asked for; None:
    the service's default. The machine is sent in full, so the service need not have met it. `key` is sent to this
    service alone and never shown. Safe to use from threads, which share the curves and never wait for one another's
    requests, and in forked processes. `close` ends what it has under way.
    """

    def __init__(
        self,
        url: str,
        machine: Machine,
        *,
        deadline_s: float = 1.0,
        fallback: Predictor | None = None,
        last_resort: bool = True,
        model: str | None = None,
        key: str | Secret | None = None,
        fresh_s: float = FRESH_S,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if not (deadline_s > 0 and math.isfinite(deadline_s)):
            raise InvalidInput(f"deadline_s={deadline_s!r} must be a finite number above 0")
        if not fresh_s >= 0:
            raise InvalidInput(f"fresh_s={fresh_s!r} must be a number of at least 0")
        if fallback is not None and fallback.machine != machine:
            raise InvalidInput(
                f"the fallback predicts for {fallback.machine.fingerprint}, not for {machine.fingerprint}"
            )
        self.machine = machine
        self.deadline_s = deadline_s
        secret = Secret(key) if isinstance(key, str) else key
        self._client = ServiceClient(BoundedClient(url, key=secret, ssl_context=ssl_context))
        given = [] if fallback is None else [fallback]
        resorts = [*given, roofline(machine)] if last_resort else given
        self._fallback = FirstOf(resorts) if resorts else None
        self._cases = machine.cases()
        self._questions = Questions(machine, model)
        self._curves = VersionedCurves(self._cases, fresh_s=fresh_s)
        self._refresher = Refresher(self._refresh)
        self._status, self._lock = RemoteStatus(), ForkLock()

    @classmethod
    def from_settings(
        cls, settings: Settings, machine: Machine, *, fallback: Predictor | None = None, model: str | None = None
    ) -> Self:
        """Return a predictor by the settings `predictor.*`; InvalidInput for no `predictor.url` or a bad key."""
        url, key, file = (settings[f"predictor.{name}"] for name in ("url", "key", "key_file"))
        if url is None:
            raise InvalidInput("predictor.url is not set; it names the service")
        if file is not None and key is not None:
            raise InvalidInput("both predictor.key and predictor.key_file are set; one of them is enough")
        return cls(
            url, machine, deadline_s=settings["predictor.deadline_s"], fallback=fallback, model=model,
            key=Secret.read(file) if file is not None else key, fresh_s=settings["predictor.fresh_s"],
        )  # fmt: skip

    @property
    def status(self) -> RemoteStatus:
        """Return what happened so far."""
        return self._status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort requests in progress and end the background thread; cached curves are still returned."""
        self._client.close()
        self._refresher.close(timeout_s=self.deadline_s)

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return one row an op over `cases` (None: all of the machine's); InvalidInput for a case it does not have."""
        CurveTable.empty(self._cases).at_cases(cases)  # a wrong case is the caller's error, not the service's
        if not ops:
            return CurveTable.empty(self._cases, model=self._curves.model).at_cases(cases)
        started_s = time.monotonic()
        cached = self._curves.get([op.key for op in ops])
        if cached is not None:
            if cached.stale:
                self._refresher.want([ops[i] for i in cached.stale])
            self._note_cached(cached)
            return cached.table.at_cases(cases)
        share = 1.0 if self._fallback is None else 1.0 - FALLBACK_SHARE
        try:
            table = self._fetch_missing(ops, started_s + share * self.deadline_s)
        except ServiceError as error:
            return self._fallen_back(ops, cases, error)
        self._note(("fetched",), source_of_curves="service", model=table.model, age_s=0.0, last_error=None)
        return table.at_cases(cases)

    def _fetch_missing(self, ops: Sequence[Op], until_s: float) -> CurveTable:
        """Fetch the curves that are not cached, again if a newer model answered than before, and return all of them."""
        keys = [op.key for op in ops]
        for _ in range(2):
            self._fetch([ops[i] for i in self._curves.missing(keys)], until_s)
            cached = self._curves.get(keys)
            if cached is not None:
                return cached.table
        raise ServiceError("the service changed its model while it was asked; ask again")

    def _fetch(self, ops: Sequence[Op], until_s: float) -> None:
        for part in self._questions.parts(ops):
            body, keys = self._questions.body(part), [op.key for op in part]
            last = self._questions.last_answer(body)
            if last is not None and not self._curves.has(last.model, keys):
                last = None
            request = self._questions.request(body, len(part), etag=last.etag if last else None)
            read = self._questions.reader(part)
            table, etag = self._client.ask(request, read, until_s=until_s)
            if table is not None:
                self._curves.add(keys, table)
                if etag is not None:
                    self._questions.remember(body, TaggedAnswer(etag, table.model))
            elif last is not None:
                self._curves.confirm(keys, last.model)

    def _refresh(self, ops: Sequence[Op]) -> None:
        """Ask for these curves again; called in the background thread."""
        try:
            self._fetch(ops, time.monotonic() + self.deadline_s)
        except ServiceError as error:
            self._note((), last_error=error)
        else:
            self._note(("refreshed",), last_error=None)

    def _fallen_back(self, ops: Sequence[Op], cases: Sequence[Case] | None, error: ServiceError) -> CurveTable:
        failed = {"source_of_curves": "", "model": "", "age_s": 0.0, "last_error": error}
        if self._fallback is None:
            self._note((), **failed)
            raise error
        try:
            table = self._fallback.curves(ops, cases=cases)
        except ModelError as second:
            self._note((), **failed)
            error.args = (f"{error}; nor can the local model answer: {second}",)
            raise error from second
        table = replace(table, model=table.model + FALLBACK_MARK)
        self._note(("fallbacks",), **failed | {"source_of_curves": "fallback", "model": table.model})
        return table

    def _note_cached(self, cached: AgedCurves) -> None:
        stale = bool(cached.stale)
        self._note(
            ("cached", "stale") if stale else ("cached",),
            source_of_curves="stale cache" if stale else "cache", model=cached.table.model, age_s=cached.age_s,
        )  # fmt: skip

    def _note(self, counted: Sequence[str], **changed: Any) -> None:
        with self._lock:
            more = {name: getattr(self._status, name) + 1 for name in counted}
            self._status = replace(self._status, **more, **changed)
