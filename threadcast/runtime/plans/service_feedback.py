"""Stores measurements of operators in steps, sends them to the service that `engine.feedback` names, and gets others'.

Run as a script, `python -m threadcast.runtime.plans.service_feedback STORE`, it stores and sends the document
(`step_rows`) on its standard input, and ends after `LONGEST_S` seconds at the latest. Its status is 0 if all is stored
and sent; else the last line of its standard error says why not.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlencode

from threadcast.core import Machine, Measurement
from threadcast.core.errors import ServiceError, ThreadcastError
from threadcast.core.measurement_documents import batch_document
from threadcast.core.secret import Secret
from threadcast.core.settings import Settings
from threadcast.prediction.bounded_request import BoundedClient, Request
from threadcast.prediction.http_answer import Answer
from threadcast.prediction.service_client import ServiceClient
from threadcast.runtime.plans.step_rows import IN_STEP, rows_of, service_of

LONGEST_S = 60
"""Seconds after which the script ends, whatever it waits for."""
SEND_S, FETCH_S = 10.0, 2.0
"""Longest time in seconds that a service may take to store all that it is sent at once, and to answer what is known."""
MOST_FETCHED = 5_000
"""Most measurements of a machine that are fetched."""
_PATH = "/v1/measurements"
_PART = 1_000
"""Measurements in one request: a service's largest page by default, and far below what it takes at once."""
_RECEIPT_BYTES, _PAGE_BYTES = 2**16, 2**25


def add_rows(rows: Sequence[Measurement], store_url: str, settings: Settings) -> None:
    """Add measurements of one machine to the store, then send them to the service where there is one.

    StoreError, ServiceError and other errors of this package, or OSError, for what cannot be stored or sent.
    """
    from threadcast.store import Store

    if not rows:
        return
    with Store.open(store_url) as store:
        store.add(rows)
    if (url := service_of(settings)) is not None:
        send_rows(rows, url, settings)


def send_rows(rows: Sequence[Measurement], url: str, settings: Settings) -> None:
    """Have the service at `url` store measurements of one machine, within `SEND_S` seconds.

    ServiceError where it does not; InvalidInput for a URL or a key that cannot be.
    """
    client, until_s = _client(url, settings), time.monotonic() + SEND_S
    for begin in range(0, len(rows), _PART):
        body = json.dumps(batch_document(rows[begin : begin + _PART])).encode()
        request = Request(_PATH, body, _RECEIPT_BYTES, safe=False, status=201)
        client.ask(request, lambda answer: answer, until_s=until_s)


def fetched_rows(machine: Machine, url: str, settings: Settings) -> list[Measurement]:
    """Return what the service at `url` knows of operators in steps on `machine`, within `FETCH_S` seconds.

    Errors as those of `send_rows`.
    """
    client, until_s = _client(url, settings), time.monotonic() + FETCH_S
    found: list[Measurement] = []
    after: int | None = 0
    for _ in range(0, MOST_FETCHED, _PART):
        query = urlencode({"machine": machine.fingerprint, "limit": _PART, "after": after})
        request = Request(f"{_PATH}?{query}", None, _PAGE_BYTES, safe=True)
        rows, after = client.ask(request, lambda answer: _page(answer, machine), until_s=until_s)
        found += rows
        if after is None:
            break
    return found


def _page(answer: Answer, machine: Machine) -> tuple[list[Measurement], int | None]:
    """The measurements of one page, and where the next begins; ServiceError for an answer that is none."""
    try:
        document = json.loads(answer.content or b"")
        rows = rows_of({**document, "machine": machine.to_json()})
        following = document["next"]
        if following is not None and not isinstance(following, int):
            raise ValueError(f"next is {following!r}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ServiceError(f"the answer has no measurements: {error}") from error
    return [row for row in rows if row.conditions.get("cache") == IN_STEP], following


def _client(url: str, settings: Settings) -> ServiceClient:
    return ServiceClient(BoundedClient(url, key=_key(url, settings)))


def _key(url: str, settings: Settings) -> Secret | None:
    """The key of the prediction service, where that is the same service; no other service is sent it."""
    if settings["predictor.url"] is None or settings["predictor.url"].rstrip("/") != url.rstrip("/"):
        return None
    file = settings["predictor.key_file"]
    key: Secret | None = settings["predictor.key"] if file is None else Secret.read(file)
    return key


def main(store_url: str) -> None:
    """Add what the standard input has."""
    signal.alarm(LONGEST_S)
    try:
        add_rows(rows_of(json.load(sys.stdin.buffer)), store_url, Settings.read())
    except (ThreadcastError, OSError) as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main(sys.argv[1])
