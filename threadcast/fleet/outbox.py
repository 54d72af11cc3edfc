"""Sends what a machine has measured from a store to a service, each measurement once."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from threadcast.core import Machine, Measurement
from threadcast.core.errors import ServiceRefused
from threadcast.core.measurement_documents import batch_document
from threadcast.prediction.bounded_request import Request
from threadcast.prediction.service_client import ServiceClient
from threadcast.store.paging import MeasurementFilter
from threadcast.store.sent import Sent

if TYPE_CHECKING:
    from threadcast.store import Store

BATCH = 200
"""Most measurements in one request."""

BATCH_SAMPLES = 20_000
"""Most samples in one request, but for a measurement that has more: a tenth of what services take by default."""

INTERRUPTED_S = 0.5
"""Seconds that an interrupted command leaves to a request under way."""

MOST_ANSWER_BYTES = 64 * 1024

NOT_THEIRS = frozenset({400, 413, 422})
"""HTTP statuses of a service that refuses the content of a request, so that another part of it may be accepted."""


class Outbox:
    """Sends the measurements of machines in a store to the service at `url`, in the order in which they were stored.

    How far it has come stands in the store, so what an outage or the end of a process left is sent by the next outbox.
    What was under way then is sent again in the same request under the same idempotency key, and so stored once, if
    that happens while the service remembers its keys (`service.idempotency_s`). So it is where several processes send
    from one store: each also sends what is under way, and goes on from where the fastest one has come. `sent` counts
    what it was first to see acknowledged. Measurements that the service refuses are left out and counted in `refused`;
    `refusal` says why the last one was.
    """

    def __init__(self, store: Store, client: ServiceClient, url: str) -> None:
        self._store, self._client, self.url = store, client, url.rstrip("/")
        self._machines: list[Machine] = []
        self._lock = threading.Lock()
        self.sent = self.refused = 0
        self.refusal = ""

    def add(self, machine: Machine) -> None:
        """From now on send the measurements of this machine, those that are stored already first."""
        if machine not in self._machines:
            self._machines = [*self._machines, machine]

    def unsent(self) -> int:
        """How many measurements the service has not acknowledged, refused ones not counted."""
        count = 0
        for machine in self._machines:
            after = self._store.sent(self.url, machine.fingerprint).stored
            while page := self._page(machine, after, 1000):
                count, after = count + len(page), page[-1].number
        return count

    def send(self, *, deadline_s: float) -> None:
        """Send all that is not sent within `deadline_s` seconds; raises the ServiceError that prevented it."""
        until_s = time.monotonic() + deadline_s
        with self._lock:
            for machine in self._machines:
                while self._send_next(machine, until_s):
                    pass

    def _page(self, machine: Machine, after: int, limit: int) -> list[Measurement]:
        return self._store.page(MeasurementFilter(machine=machine.fingerprint), after=after, limit=limit)[1]

    def _send_next(self, machine: Machine, until_s: float) -> bool:
        """Send one request; False where nothing was left."""
        done = self._store.sent(self.url, machine.fingerprint)
        page = self._page(machine, done.stored, BATCH)
        if not page:
            return False
        batch = _within(page)
        if done.under_way > done.stored:
            batch = [m for m in page if m.number <= done.under_way]
        if batch:  # else what was under way is not in the store any more
            self._send(machine, batch, done, until_s)
        else:
            self._note(machine, Sent(done.under_way, done.under_way), was=done)
        return True

    def _send(self, machine: Machine, batch: Sequence[Measurement], done: Sent, until_s: float) -> None:
        last = batch[-1].number
        sending, ended = Sent(done.stored, last), Sent(last, last)
        if not self._note(machine, sending, was=done):
            return  # another process was faster: what is left must be read anew
        try:
            self._client.ask(_request(batch), lambda answer: None, until_s=until_s)
        except ServiceRefused as error:
            if error.status not in NOT_THEIRS:
                raise
            if len(batch) > 1:
                self._note(machine, Sent(done.stored, batch[len(batch) // 2 - 1].number), was=sending)
            elif self._note(machine, ended, was=sending):
                self.refused, self.refusal = self.refused + 1, str(error)
        else:
            if self._note(machine, ended, was=sending):
                self.sent += len(batch)

    def _note(self, machine: Machine, sent: Sent, *, was: Sent) -> bool:
        return self._store.note_sent(self.url, machine.fingerprint, sent, was=was)


class SendingInBackground:
    """Sends from an outbox every `every_s` seconds until the end of the `with` statement, and then what is left.

    A service that cannot be reached costs nothing but its measurements' delay. `problem` is the last error, None where
    the last attempt succeeded; `on_problem` is called with the first error after an attempt that succeeded.
    """

    def __init__(
        self, outbox: Outbox, *, every_s: float = 5.0, deadline_s: float = 30.0,
        on_problem: Callable[[Exception], None] = lambda error: None,
    ) -> None:  # fmt: skip
        self._on_problem = on_problem
        self.outbox, self._every_s, self._deadline_s = outbox, every_s, deadline_s
        self._stop, self._interrupted = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="threadcast-outbox", daemon=True)
        self.problem: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if error is None or isinstance(error, Exception):
            self._thread.join()
            self._try()
        else:  # Ctrl-C does not wait for the service: what is under way is sent again by the next outbox
            self._interrupted = True
            self._thread.join(INTERRUPTED_S)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._try()

    def _try(self) -> None:
        try:
            self.outbox.send(deadline_s=self._deadline_s)
        except Exception as error:  # noqa: BLE001 - of the store or the service; measuring goes on, and the caller is told
            first, self.problem = self.problem is None, error
            if first and not self._interrupted:
                self._on_problem(error)
        else:
            self.problem = None


def _within(page: Sequence[Measurement]) -> Sequence[Measurement]:
    """As many measurements from the first on as one request takes, at least one."""
    samples = 0
    for i, measurement in enumerate(page):
        samples += len(measurement.samples)
        if i and samples > BATCH_SAMPLES:
            return page[:i]
    return page


def _request(batch: Sequence[Measurement]) -> Request:
    body = json.dumps(batch_document(batch), allow_nan=False).encode()
    key = f"threadcast-{hashlib.sha256(body).hexdigest()}"
    return Request("/v1/measurements", body, MOST_ANSWER_BYTES, safe=True, status=201, idempotency_key=key)
