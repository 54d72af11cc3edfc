"""Adds measurements of operators in steps to the store, and sends them to the service that `engine.feedback` names.

Run as a script, `python -m threadcast.runtime.plans.rows_process STORE`, it does that with the document (`step_rows`)
on its standard input, and ends after `LONGEST_S` seconds at the latest. Its status is 0 if all
is stored and sent; else the last line of its standard error says why not.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence

from threadcast.core import Measurement
from threadcast.core.errors import ThreadcastError
from threadcast.core.settings import Settings
from threadcast.runtime.plans.step_rows import rows_of, service_of

LONGEST_S = 60
"""Seconds after which the script ends, whatever it waits for."""


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
        from threadcast.runtime.plans.service_feedback import send_rows

        send_rows(rows, url, settings)


def main(store_url: str) -> None:
    """Add what the standard input has."""
    signal.alarm(LONGEST_S)
    try:
        add_rows(rows_of(json.load(sys.stdin.buffer)), store_url, Settings.read())
    except (ThreadcastError, OSError) as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main(sys.argv[1])
