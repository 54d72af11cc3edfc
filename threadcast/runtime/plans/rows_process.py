"""Adds measurements of operators in steps to the store, and sends them to the service that `engine.feedback` names.

Run as a script, `python -m threadcast.runtime.plans.rows_process STORE`, it does that with the document (`step_rows`)
on its standard input, at the lowest priority, and ends after `LONGEST_S` seconds at the latest. Its status is 0 if all
is stored and sent; else the last line of its standard error says why not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence

from threadcast.core import Measurement
from threadcast.core.errors import ThreadcastError
from threadcast.core.secret import Secret
from threadcast.core.settings import Settings
from threadcast.runtime.plans.step_rows import document_of, rows_of

SERVICE_S = 10.0
"""Longest time in seconds that a service may take to store all that it is sent at once."""
LONGEST_S = 60
"""Seconds after which the script ends, whatever it waits for."""
_PART = 1_000
"""Measurements in one request: far below what services take at once by default."""
_ANSWER_BYTES = 65_536
_NICEST = 19


def service_of(settings: Settings) -> str | None:
    """Return the URL of the service that the setting `engine.feedback` names; None where it names none."""
    feedback: str = settings["engine.feedback"]
    return feedback if feedback.startswith(("http://", "https://")) else None


def add_rows(rows: Sequence[Measurement], store_url: str, settings: Settings) -> None:
    """Add measurements of one machine to the store, then send them to the service where there is one.

    StoreError, ServiceError and other errors of this package, or OSError, for what cannot be stored or sent.
    """
    from threadcast.store import Store

    if not rows:
        return
    with Store.open(store_url) as store:
        store.add(rows)
    url = service_of(settings)
    if url is not None:
        _send(rows, url, _key(url, settings))


def _send(rows: Sequence[Measurement], url: str, key: Secret | None) -> None:
    from threadcast.prediction.bounded_request import BoundedClient, Request
    from threadcast.prediction.service_client import ServiceClient

    client, until_s = ServiceClient(BoundedClient(url, key=key)), time.monotonic() + SERVICE_S
    for begin in range(0, len(rows), _PART):
        body = json.dumps(document_of(rows[begin : begin + _PART])).encode()
        request = Request("/v1/measurements", body, _ANSWER_BYTES, safe=False)
        client.ask(request, lambda answer: answer, until_s=until_s)


def _key(url: str, settings: Settings) -> Secret | None:
    """The key of the prediction service, where that is the same service; no other service is sent it."""
    if settings["predictor.url"] is None or settings["predictor.url"].rstrip("/") != url.rstrip("/"):
        return None
    file = settings["predictor.key_file"]
    key: Secret | None = settings["predictor.key"] if file is None else Secret.read(file)
    return key


def main(store_url: str) -> None:
    """Add what the standard input has."""
    os.nice(_NICEST)
    signal.alarm(LONGEST_S)
    try:
        add_rows(rows_of(json.load(sys.stdin.buffer)), store_url, Settings.read())
    except (ThreadcastError, OSError) as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main(sys.argv[1])
