"""What a call prints, logs, warns of, draws, or reads of files and clocks while it is recorded: the call is refused.

A graph would print nothing, and have built in what was read or drawn. Streams, clocks and generators that code holds
itself are not noticed here, as by `from time import time`; code that can reach one is refused (`reachable`).
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import random
import re
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import Any

import numpy as np
import torch

from threadcast.capture.guards.libraries import is_library
from threadcast.capture.guards.one_capture import replaced
from threadcast.core.errors import CaptureError


class _Stream:
    """Stands for a stream: what the capturing thread writes is noted, and not shown."""

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


class Said(CaptureError):
    """A call prints, logs, warns or reads a file or a clock. Where only the first does, later ones can be captured."""

    def __init__(self, does: str) -> None:
        super().__init__(f"cannot capture: it {does} in each call, which a graph would not do")


_CLOCKS = [f"{clock}{unit}" for clock in ("time", "monotonic", "perf_counter", "process_time") for unit in ("", "_ns")]
GENERATORS = (random, random._inst), (np.random, np.random.mtrand._rand), (np.random.mtrand, np.random.mtrand._rand)
"""Modules with a generator that all of a process uses, and the generator."""
_SEEDS = ("seed", "manual_seed", "setstate", "set_state")
_DRAWS = dict.fromkeys((
    (os, "urandom"), (uuid, "uuid4"), (torch, "manual_seed"), (torch, "seed"), (torch.random, "manual_seed"),
    (torch.random, "seed"), *((np.random, name) for name in ("default_rng", "ranf", "sample", "seed")),
    *((module, name) for module, generator in GENERATORS for name, function in vars(module).items()
      if getattr(function, "__self__", None) is generator),
))  # fmt: skip
READS: list[tuple[Any, str, str]] = [
    (builtins, "open", "opens a file"), (io, "open", "opens a file"), (os, "stat", "looks at a file"),
    (os, "listdir", "looks at a folder"), *((time, name, "reads a clock") for name in _CLOCKS),
    *((owner, name, "sets a seed" if name in _SEEDS else "draws random numbers") for owner, name in _DRAWS),
]  # fmt: skip
"""Functions that give something else in each call, or decide what others give, and what calls of them do, in words."""
_IN_EACH_CALL = ("always", "all", "error")
"""What filters do with warnings that every call shows. Others are shown once, by the first call."""


@contextmanager
def not_shown() -> Iterator[list[str]]:
    """Within the context, what this thread prints, logs or warns of is not shown; the list gets what it does, in words.

    What PyTorch itself logs and warns of is not shown, and not in the list. Said where this thread draws random
    numbers or sets a seed, whoever's code does, or reads a file or a clock, unless a library does so for itself.
    Not for two threads at once.
    """
    found, filters = list[str](), list(warnings.filters)

    def logged(_: Callable[..., None], __: logging.Logger, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] not in ("torch", "threadcast"):
            found.append("logs")

    def warned(warn: Callable[..., None], message: Any, category: Any = None, *args: Any, **options: Any) -> None:
        name = sys._getframe(2).f_globals.get("__name__", "")
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        if not is_library(name) and _action(filters, str(message), kind, name) in _IN_EACH_CALL:
            found.append("warns")
        warn(message, category, *args, **options)

    def refusing(does: str) -> Callable[..., Any]:
        def called(read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            if _is_of_a_library(sys._getframe(2), does):
                return read(*arguments, **options)
            found.append(does)
            raise Said(does)

        return called

    here = {get_ident()}  # empty afterwards: what is imported meanwhile may keep what stands for a stream
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    standing = {name: _Stream(stream, here, found) for name, stream in streams.items() if stream is not None}
    reads = ((owner, name, refusing(does)) for owner, name, does in READS)
    with (
        warnings.catch_warnings(),
        replaced((logging.Logger, "callHandlers", logged), (warnings, "warn", warned), *reads),
    ):
        warnings.simplefilter("ignore")
        vars(sys).update(standing)
        try:
            yield found
        finally:
            here.clear()
            for name, stream in standing.items():
                if getattr(sys, name) is stream:  # else another thread has put its own there
                    setattr(sys, name, streams[name])


def _is_of_a_library(frame: FrameType | None, does: str) -> bool:
    """Whether what is read is read by an import, or by a library for itself.

    Many read files for others, and all draw random numbers from the generator of all.
    """
    names, files = [], does.endswith(("file", "folder"))
    while frame is not None:
        names.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    by = next((name for name in names if not files or name.partition(".")[0] not in sys.stdlib_module_names), "")
    own = by.startswith("torch.") and by != "torch.serialization" if files else is_library(by)
    return (own and not does.endswith(("numbers", "seed"))) or "importlib._bootstrap" in names


def _action(filters: list[Any], message: str, category: type[Warning], module: str) -> str:
    """What the first filter that fits does with a warning."""
    for action, text, kind, name, line in filters:
        fits = not line and issubclass(category, kind) and (name is None or re.match(name, module))
        if fits and (text is None or re.match(text, message)):
            return str(action)
    return "default"
