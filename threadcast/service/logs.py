"""The log of the service's processes on stderr, as text or as JSON, and the access log.

Every line of a request has its id and the name of its key; what looks like a key is never written.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from pythonjsonlogger.orjson import OrjsonFormatter

from threadcast.service.keys import PREFIX

Form = Literal["text", "json"]

TEXT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s%(of_request)s: %(message)s"
JSON = ("asctime", "levelname", "name", "message")
RENAMED = {"asctime": "time", "levelname": "level", "name": "logger"}
TIME = "%Y-%m-%dT%H:%M:%S"

WAITING_LINES = 10_000
"""Most lines of the access log that wait to be written; more are dropped, since a slow disk must not stop requests."""

CLOSE_S = 5.0
"""Longest time in which waiting lines are written when the process ends, in seconds."""

GONE = 499
"""Status in the access log of a request whose client left before the answer, as nginx writes it."""

_SECRET = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]{20,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def configure(form: Form, *, of_request: Callable[[], Mapping[str, str]] = dict, level: int = logging.WARNING) -> None:
    """Write this process's log, and that of its forks, to stderr in this form, from `level` on.

    `of_request` returns what every line of the current request has: "request_id", and "key" where it has one.
    """
    handler = logging.StreamHandler()
    formatter = _Json(JSON, rename_fields=RENAMED, datefmt=TIME) if form == "json" else _Text(TEXT, TIME)
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(_OfRequest(of_request))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def without_secrets(text: str) -> str:
    """`text` without API keys and control characters, which could make a terminal do things."""
    return _CONTROL.sub("?", _SECRET.sub(f"{PREFIX}(hidden)", text))


class _OfRequest(logging.Filter):
    """Adds what belongs to the current request to every record."""

    def __init__(self, of_request: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._of_request = of_request

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in self._of_request().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = (getattr(record, name, "") for name in ("request_id", "key"))
        named = " ".join(text for text in found if text)
        record.of_request = f" [{named}]" if named else ""
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        return super().formatMessage(record).replace("\n", "\\n")  # a path may have one, and must not forge a line


class _Json(OrjsonFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - of logging
        return f"{super().formatTime(record, datefmt)}.{int(record.msecs):03d}Z"


@dataclass(frozen=True, slots=True)
class Access:
    """One request, as the access log has it."""

    client: str
    method: str
    path: str
    """Without the query."""
    status: int
    bytes: int
    """Of the answer's body."""
    duration_ms: float
    """From the arrival of the head to the answer, before it is sent."""
    request_id: str
    key: str = ""
    """Name of the API key; empty without one that is known."""


class AccessLog(logging.Handler):
    """Writes the access log in a thread of its own, so that the server waits for no disk. Make it after a fork."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0
        """Lines that were not written, since too many were waiting."""
        self._log = logging.getLogger("threadcast.access")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log.handlers[:] = [self]
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING_LINES)
        self._writing = threading.Thread(target=self._write, name="access log", daemon=True)
        self._writing.start()

    def note(self, access: Access) -> None:
        """Have one line written; it is dropped where too many are waiting."""
        members = {name: value for name, value in asdict(access).items() if value != ""}
        self._log.info(
            '%s "%s %s" %d %d B %.1f ms', access.client, access.method, access.path, access.status, access.bytes,
            access.duration_ms, extra=members,
        )  # fmt: skip

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is waiting, and how many lines were dropped; give up after `CLOSE_S` seconds."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_S)
            self._writing.join(CLOSE_S)
        if self.dropped and not self._writing.is_alive():
            logging.getLogger(__name__).warning("%d lines of the access log were dropped", self.dropped)
        super().close()

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            for handler in logging.getLogger().handlers:
                handler.handle(record)
