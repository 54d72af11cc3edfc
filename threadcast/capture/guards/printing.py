"""What a call prints, logs, warns of, or reads of files and clocks while it is recorded: the call is refused.

A graph would print nothing, and have built in what was read. Streams and clocks that code holds itself are not noticed
here, as by `from time import time`; code that can reach one is refused (`reachable`).
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import re
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np

from threadcast.capture.guards.libraries import is_library
from threadcast.core.errors import CaptureError


class Said(CaptureError):
    """A call prints, logs, warns or reads a file or a clock. Where only the first does, later ones can be captured."""

    def __init__(self, does: str) -> None:
        super().__init__(f"cannot capture: it {does} in each call, which a graph would not do")


_STREAMS = ("stdout", "stderr")
_CLOCKS = [f"{clock}{unit}" for clock in ("time", "monotonic", "perf_counter", "process_time") for unit in ("", "_ns")]
READS: list[tuple[Any, str, str]] = [
    (builtins, "open", "opens a file"), (io, "open", "opens a file"), (os, "stat", "looks at a file"),
    (os, "listdir", "looks at a folder"), *((time, name, "reads a clock") for name in _CLOCKS),
    *((owner, name, "draws random numbers")
      for owner, name in ((os, "urandom"), (uuid, "uuid4"), (np.random, "default_rng"))),
]  # fmt: skip
"""Functions that give something else in each call, and what calls of them do, in words."""
_IN_EACH_CALL = ("always", "all", "error")
"""What filters do with warnings that every call shows. Others are shown once, by the first call."""


class _Stream:
    """Stands for a stream: what a thread of `here` writes is noted in `found` and not shown."""

    def __init__(self, stream: Any, here: set[int], found: list[str]) -> None:
        self._stream, self._here, self._found = stream, here, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if get_ident() not in self._here:
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

    What PyTorch itself logs and warns of is not shown, and not in the list. Said where this thread reads a file or a
    clock, unless a library does so for itself. Not for two threads at once.
    """
    found = list[str]()
    here = {get_ident()}  # empty afterwards: what is imported meanwhile may keep what stands for a function or stream
    streams = {name: getattr(sys, name) for name in _STREAMS}
    standing = {name: _Stream(stream, here, found) for name, stream in streams.items() if stream is not None}
    handle, warn, filters = logging.Logger.callHandlers, warnings.warn, list(warnings.filters)

    def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        if get_ident() not in here or record.name.startswith("threadcast"):
            handle(logger, record)
        elif record.name.partition(".")[0] != "torch":
            found.append("logs")

    def noted(message: Any, category: Any = None, *args: Any, **options: Any) -> None:
        name = sys._getframe(1).f_globals.get("__name__", "")
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        seen = get_ident() in here and not is_library(name)
        if seen and _action(filters, str(message), kind, name) in _IN_EACH_CALL:
            found.append("warns")
        warn(message, category, *args, **options)

    def refusing(read: Callable[..., Any], does: str) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            files = does.endswith(("file", "folder"))
            if get_ident() not in here or _is_of_a_library(sys._getframe(1), files=files):
                return read(*arguments, **options)
            found.append(does)
            raise Said(does)

        return called

    with warnings.catch_warnings(), ExitStack() as end:
        for owner, name, does in READS:
            end.enter_context(patch.object(owner, name, refusing(getattr(owner, name), does)))
        warnings.simplefilter("ignore")
        vars(sys).update(standing)
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign,assignment]
        warnings.warn = noted
        try:
            yield found
        finally:
            here.clear()
            for name, stream in standing.items():
                if getattr(sys, name) is stream:  # else another thread has put its own there
                    setattr(sys, name, streams[name])
            logging.Logger.callHandlers, warnings.warn = handle, warn  # type: ignore[method-assign]


def _is_of_a_library(frame: FrameType | None, *, files: bool) -> bool:
    """Whether what is read is read by an import, or by a library for itself; many read `files` for others."""
    names = []
    while frame is not None:
        names.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    by = next((name for name in names if not files or name.partition(".")[0] not in sys.stdlib_module_names), "")
    own = by.startswith("torch.") and by != "torch.serialization" if files else is_library(by)
    return own or "importlib._bootstrap" in names


def _action(filters: list[Any], message: str, category: type[Warning], module: str) -> str:
    """What the first filter that fits does with a warning."""
    for action, text, kind, name, line in filters:
        fits = not line and issubclass(category, kind) and (name is None or re.match(name, module))
        if fits and (text is None or re.match(text, message)):
            return str(action)
    return "default"
