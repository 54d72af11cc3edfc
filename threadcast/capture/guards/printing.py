"""What a call prints, logs or warns of while it is recorded: it is not shown, and the call is refused.

A graph would print nothing. Files and streams that code holds itself, as by `from sys import stdout`, are not noticed.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from threadcast.capture.guards.libraries import is_library
from threadcast.core.errors import CaptureError


class Said(CaptureError):
    """A call prints, logs or warns. Where only the first call does, later ones can be captured."""


_STREAMS = ("stdout", "stderr")
_IN_EACH_CALL = ("always", "all", "error")
"""What filters do with warnings that every call shows. Others are shown once, by the first call."""


class _Stream:
    """Stands for a stream: what the thread `here` writes is noted in `found` and not shown."""

    def __init__(self, stream: Any, here: int, found: list[str]) -> None:
        self._stream, self._here, self._found = stream, here, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if get_ident() != self._here:
            written: int = self._stream.write(text)
            return written
        self._found.append("prints")
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)


@contextmanager
def not_shown() -> Iterator[list[str]]:
    """Within the context, what this thread prints, logs or warns of is not shown; the list gets what it does, in words.

    What PyTorch itself logs and warns of is not shown, and not in the list. Not for two threads at once.
    """
    here, found = get_ident(), list[str]()
    streams = {name: getattr(sys, name) for name in _STREAMS}
    standing = {name: _Stream(stream, here, found) for name, stream in streams.items() if stream is not None}
    handle, warn, filters = logging.Logger.callHandlers, warnings.warn, list(warnings.filters)

    def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        if get_ident() != here or record.name.startswith("threadcast"):
            handle(logger, record)
        elif record.name.partition(".")[0] != "torch" and _is_handled(logger, record):
            found.append("logs")

    def noted(message: Any, category: Any = None, *args: Any, **options: Any) -> None:
        name = sys._getframe(1).f_globals.get("__name__", "")
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        if get_ident() == here and not is_library(name) and _action(filters, str(message), kind, name) in _IN_EACH_CALL:
            found.append("warns")
        warn(message, category, *args, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vars(sys).update(standing)
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign,assignment]
        warnings.warn = noted
        try:
            yield found
        finally:
            for name, stream in standing.items():
                if getattr(sys, name) is stream:  # else another thread has put its own there
                    setattr(sys, name, streams[name])
            logging.Logger.callHandlers, warnings.warn = handle, warn  # type: ignore[method-assign]


def _is_handled(logger: logging.Logger, record: logging.LogRecord) -> bool:
    """Whether a handler shows the record, the one of last resort included."""
    handlers: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        handlers += at.handlers
        at = at.parent if at.propagate else None
    last = logging.lastResort
    return any(record.levelno >= one.level for one in handlers or ([] if last is None else [last]))


def _action(filters: list[Any], message: str, category: type[Warning], module: str) -> str:
    """What the first filter that fits does with a warning."""
    for action, text, kind, name, line in filters:
        fits = not line and issubclass(category, kind) and (name is None or re.match(name, module))
        if fits and (text is None or re.match(text, message)):
            return str(action)
    return "default"
