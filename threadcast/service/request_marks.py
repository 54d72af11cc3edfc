"""The headers of every answer that identify the request and give the times of the parts of its work."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from apiflask import APIFlask
from flask import Response, g, has_request_context, request

REQUEST_ID = "X-Request-Id"
SERVER_TIMING = "Server-Timing"

ID, KEY = "threadcast.request_id", "threadcast.key"
"""Members of a request's environment: its id, and the name of its API key."""

_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
"""Pattern of the ids that a client may choose; such an id cannot forge a line of a log."""


def id_of(sent: str) -> str:
    """Return the id of a request whose client sent this one: it where it is acceptable, else a random one."""
    return sent if _SANE.fullmatch(sent) else f"{random.getrandbits(128):032x}"


def request_id() -> str:
    """Return the id of the current request."""
    found: str | None = request.environ.get(ID)
    if found is None:
        found = request.environ[ID] = id_of(request.environ.get("HTTP_X_REQUEST_ID", ""))
    return found


def of_request() -> dict[str, str]:
    """Return what every line of the log has of the current request; nothing where there is none."""
    if not has_request_context():
        return {}
    key = request.environ.get(KEY)
    return {"request_id": request_id(), **({"key": key} if key else {})}


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """Add the time of the block to that of the phase of this name in the current request."""
    started = time.perf_counter()
    try:
        yield
    finally:
        phases = g.setdefault("phases", {})
        phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - started


def install(app: APIFlask) -> None:
    """Add X-Request-Id and Server-Timing (milliseconds) to every answer of `app`."""

    def mark(response: Response) -> Response:
        response.headers.add(REQUEST_ID, request_id())
        started_s = g.get("started_s")
        if started_s is not None:
            took = {**g.get("phases", {}), "total": time.perf_counter() - started_s}
            said = [f"{name};dur={s * 1e3:.3f}" for name, s in took.items()]
            response.headers.add(SERVER_TIMING, ", ".join(said))
        return response

    app.after_request(mark)
