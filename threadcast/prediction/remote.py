"""Curves from a prediction service by a deadline; in its absence from a cache or a fallback."""

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
from threadcast.core.fork_lock import ForkLock
from threadcast.core.secret import Secret
from threadcast.core.settings import Settings
from threadcast.prediction.bounded_request import BoundedClient
from threadcast.prediction.fallback import first_curves, reserve_s, roofline
from threadcast.prediction.predictor import Predictor
from threadcast.prediction.questions import Questions
from threadcast.prediction.service_client import ServiceClient
from threadcast.prediction.versioned_curves import VersionedCurves

FALLBACK_MARK = " (local fallback)"
"""Suffix of `table.model` where the fallback answered."""

FALLBACK_SHARE = 0.2
"""Share of the deadline that is reserved for the fallback."""

FRESH_S = 60.0
"""Age in seconds up to which cached curves are returned without asking the service whether they still hold. With this
value a new model or new measurements reach every scheduler in about a minute, at one request a minute."""


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """How many tables a RemotePredictor has returned, by their origin, and facts about the latest one."""

    fetched: int = 0
    """Tables for which the service was asked successfully."""
    cached: int = 0
    """Tables from the cache, without asking the service."""
    stale: int = 0
    """Tables, counted in `cached` too, with a curve older than `fresh_s`, because the service gave no usable answer."""
    fallbacks: int = 0
    """Tables with curves of the fallback, because the service gave no usable answer."""
    source_of_curves: str = ""
    """Origin of the latest table: "service", "cache", "stale cache", "fallback" or "cache and fallback"; empty where
    there is none."""
    model: str = ""
    """`table.model` of the latest table."""
    age_s: float = 0.0
    """Age in seconds of the oldest curve in the latest table, since the service has sent it."""
    last_error: ServiceError | None = None
    """The error of the latest request; None if it succeeded."""


class RemotePredictor:
    """Predicts curves on `machine` by the service at `url`, or by `fallback` if the service gives no answer in time.

    `deadline_s` bounds each call of `curves` in seconds, over all its requests: name look-up, connecting, TLS, slow
    answers, waits between attempts. A fifth of it is reserved for the fallback, and more for many ops. While the
    service keeps failing, it is not asked and the fallback answers at once.

    Whole curves are cached by `Op.forecast_key` and model version; those older than `fresh_s` seconds are asked for
    again. An answer that is not exactly what was asked for (shape, order, finite times) is refused. All curves of the
    service in a table come from one model version. When the service fails, ops whose curves are cached keep these,
    however old, and the others get the fallback's; `table.model` and `status` say so. The cache holds about 58,000 ops
    on a machine of 68 cases (`held_curves.MOST_POINTS`); then those of the latest call stay.

    Where `fallback` cannot answer, not so soon, or is None, a roofline of the machine does, which always can. With
    `last_resort=False` ServiceError or a subclass is raised instead. `model` is the alias or "name@version" to ask
    (None: the service's default). The machine is sent in full, so the service need not know it. `key` is sent to this
    service alone and never shown. `ssl_context` checks the service's certificate.

    Safe in forked processes and from threads, which share the cached curves and never wait for each other's requests.
    InvalidInput for numbers outside their range, and for a fallback of another machine.
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
        self._fallbacks = [*given, roofline(machine)] if last_resort else given
        self._cases = machine.cases()
        self._questions = Questions(machine, model)
        self._curves = VersionedCurves(self._cases, fresh_s=fresh_s)
        self._status, self._lock = RemoteStatus(), ForkLock()

    @classmethod
    def from_settings(
        cls, settings: Settings, machine: Machine, *, fallback: Predictor | None = None, model: str | None = None
    ) -> Self:
        """Return a predictor by the settings `predictor.*`; InvalidInput without `predictor.url` or for a bad key."""
        url, key, file = (settings[f"predictor.{name}"] for name in ("url", "key", "key_file"))
        if url is None:
            raise InvalidInput("predictor.url is not set; it names the service")
        if file is not None and key is not None:
            raise InvalidInput("both predictor.key and predictor.key_file are set; one of them is enough")
        return cls(
            url, machine, deadline_s=settings["predictor.deadline_s"], fallback=fallback, model=model,
            key=Secret.read(file) if file is not None else key,
        )  # fmt: skip

    @property
    def status(self) -> RemoteStatus:
        """Counts of the tables returned so far, and facts about the latest one."""
        return self._status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort current requests; cached curves are still returned afterwards."""
        self._client.close()

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return a table with one row for each op over `cases` (None: all of the machine's), within `deadline_s`.

        InvalidInput for a case that the machine does not have. ServiceError only without `last_resort`.
        """
        CurveTable.empty(self._cases).at_cases(cases)  # a wrong case is the caller's error, not the service's
        if not ops:
            return CurveTable.empty(self._cases, model=self._curves.model).at_cases(cases)
        until_s = time.monotonic() + self.deadline_s
        keys = [op.forecast_key for op in ops]
        cached = None if self._curves.wanted(keys) else self._curves.known(keys)
        if cached is not None and len(cached.rows) == len(ops):
            self._note(("cached",), source_of_curves="cache", model=cached.table.model, age_s=cached.age_s)
            return cached.table.at_cases(cases)
        try:
            table = self._fetch_missing(ops, until_s - self._reserved_s(len(ops)))
        except ServiceError as error:
            return self._fallen_back(ops, error, until_s).at_cases(cases)
        self._curves.trim(keys)
        self._note(("fetched",), source_of_curves="service", model=table.model, age_s=0.0, last_error=None)
        return table.at_cases(cases)

    def _reserved_s(self, ops: int) -> float:
        """The seconds of a call that are reserved for the fallback; at most half of it."""
        if not self._fallbacks:
            return 0.0
        return min(max(FALLBACK_SHARE * self.deadline_s, reserve_s(ops, self.machine)), 0.5 * self.deadline_s)

    def _fetch_missing(self, ops: Sequence[Op], until_s: float) -> CurveTable:
        """Fetch the curves that are not cached or old, and return all. Ask once more if the service has changed its
        model."""
        keys = [op.forecast_key for op in ops]
        for _ in range(2):
            self._fetch([ops[i] for i in self._curves.wanted(keys)], until_s)
            cached = self._curves.known(keys)
            if cached is not None and len(cached.rows) == len(ops):
                return cached.table
        raise ServiceError("the service changed its model while it was asked; ask again")

    def _fetch(self, ops: Sequence[Op], until_s: float) -> None:
        """Ask for these curves; ServiceError, with all others kept, where the service forecasts none of some op."""
        refused, why_not = 0, ""
        for part in self._questions.parts(ops):
            request, read = self._questions.request(part), self._questions.reader(part)
            found = self._client.ask(request, read, until_s=until_s)
            self._curves.add([part[row].forecast_key for row in found.rows], found.table)
            refused, why_not = refused + len(part) - len(found.rows), why_not or found.why_not
        if refused:
            raise ServiceError(f"the service forecasts {refused} of {len(ops)} ops not: {why_not}")

    def _fallen_back(self, ops: Sequence[Op], error: ServiceError, until_s: float) -> CurveTable:
        """The cached curves of the ops that have one, and the fallback's of the others."""
        failed = {"source_of_curves": "", "model": "", "age_s": 0.0, "last_error": error}
        known = self._curves.known([op.forecast_key for op in ops])
        if known is not None and len(known.rows) == len(ops):
            found = {"source_of_curves": "stale cache", "model": known.table.model, "age_s": known.age_s}
            self._note(("cached", "stale"), **failed | found)
            return known.table
        if not self._fallbacks:
            self._note((), **failed)
            raise error
        rows = () if known is None else known.rows
        unknown = sorted(set(range(len(ops))) - set(rows))
        try:
            table = first_curves(self._fallbacks, [ops[i] for i in unknown], until_s=until_s)
        except ModelError as second:
            self._note((), **failed)
            error.args = (f"{error}; nor can the local model answer: {second}",)
            raise error from second
        if known is None:
            table = replace(table, model=table.model + FALLBACK_MARK)
            self._note(("fallbacks",), **failed | {"source_of_curves": "fallback", "model": table.model})
            return table
        both = CurveTable.of_parts([(rows, known.table), (unknown, table)])
        both = replace(both, model=f"{known.table.model} and {table.model}{FALLBACK_MARK}")
        self._note(
            ("fallbacks",),
            **failed | {"source_of_curves": "cache and fallback", "model": both.model, "age_s": known.age_s},
        )
        return both

    def _note(self, counted: Sequence[str], **changed: Any) -> None:
        with self._lock:
            more = {name: getattr(self._status, name) + 1 for name in counted}
            self._status = replace(self._status, **more, **changed)
