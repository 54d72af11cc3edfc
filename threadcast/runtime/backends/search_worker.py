"""The process that builds backends for one captured forward pass after another; `BackendSearch` starts it.

`main` has the file descriptor of programs and a folder as arguments. It begins when it reads `BEGIN` and the
options as a line of JSON from its standard input, as soon as a program is in the file. It writes one JSON document a
line to its standard output: a way that is built, checked and timed, or something that is left out.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch

from threadcast.core.errors import CaptureError
from threadcast.runtime.backends import search_guard
from threadcast.runtime.backends.building import Search
from threadcast.runtime.backends.exported import cpu_s
from threadcast.runtime.backends.program_file import read_program
from threadcast.runtime.backends.ways import BEGIN, DONE, Options
from threadcast.runtime.plans.backend_history import BackendHistory
from threadcast.threads.memory import keep_freed_memory, return_freed_memory

IDLE_S = 60.0
"""Seconds without a program after which the process ends."""
_NEEDED_FIRST = "torch.onnx._internal.exporter._core", "onnxscript", "openvino"
"""What is imported while no program has come yet: it takes seconds, and most programs need it."""


class Caller:
    """The process that started this one, at the other end of the standard input and output."""

    def __init__(self, folder: Path) -> None:
        self._idle = folder / search_guard.IDLE
        self._messages = os.dup(1)
        os.dup2(2, 1)  # what libraries print must not look like a message

    def send(self, **message: Any) -> None:
        """Write a message."""
        os.write(self._messages, json.dumps(message).encode() + b"\n")

    def wait_for_program(self, *, first: bool = False) -> Options:
        """Return the options of the next program as soon as it is written; exit where none comes for long.

        What was built for a program before may be opened until the caller says that it is done.
        """
        coming, timeout_ms = select.poll(), IDLE_S * 1e3 if first else None
        coming.register(0, select.POLLIN)
        for library in _NEEDED_FIRST:
            if not coming.poll(0):
                with suppress(ImportError):
                    importlib.import_module(library)
        while coming.poll(timeout_ms):
            told = os.read(0, 1)
            if not told:
                break
            if told[0] == DONE:
                timeout_ms = IDLE_S * 1e3
            if told[0] == BEGIN:
                self._idle.unlink(missing_ok=True)
                self.send(begun=True)
                return Options(**json.loads(b"".join(iter(lambda: os.read(0, 1), b"\n"))))
        sys.exit(search_guard.NOTHING_TO_DO)

    def end_program(self) -> None:
        """Tell that all was built, and that this process computes nothing from now on."""
        self._idle.touch()
        self.send(over=True)


def take_conditions(options: Options) -> None:
    """Take on the conditions of the caller's steps: CPUs, threads, and what happens to freed memory."""
    if options.cpus is not None:
        os.sched_setaffinity(0, options.cpus)
    torch.set_num_threads(options.cores)
    if options.keeps_memory:
        keep_freed_memory()


def main(file: str, folder: str) -> None:
    """Search for one program after another, and tell the caller on the standard output."""
    caller, place = Caller(Path(folder)), Path(folder)
    for number in count():
        options, own = caller.wait_for_program(first=not number), place / str(number)
        shutil.rmtree(place / str(number - 1), ignore_errors=True)
        take_conditions(options)
        own.mkdir()
        _search(int(file), options, own, caller)
        gc.collect()
        return_freed_memory()
        caller.end_program()


def _search(file: int, options: Options, folder: Path, caller: Caller) -> None:
    with torch.no_grad():
        try:
            search = Search(read_program(file), options, folder, caller.send, began_s=cpu_s())
        except CaptureError as error:
            caller.send(left_out="every backend", reason=str(error))
        else:
            search.run(BackendHistory(search.history))
