"""Searches for backends of a module, what they find, and what they leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.waiting import attempts, eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.backends.search_guard import PREFIX
from threadcast.runtime.backends.search_process import end_kept
from threadcast.runtime.tuner.candidate import Way


def search_for(module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], **options: Any) -> BackendSearch:
    """A search on one core, with these `options` of `BackendSearch`."""
    captured = capture_forward(lambda args, kwargs: module(*args, **kwargs), *arguments)
    with torch.no_grad():
        args, kwargs = arguments
        result = options.pop("result") if "result" in options else module(*args, **kwargs)
    return BackendSearch(module, arguments, captured, 1, result=result, **options)


def found_by(search: BackendSearch) -> list[Way]:
    search.start()
    return list(polled(search))


def polled(search: BackendSearch, *, unlimited: bool = False) -> Iterator[Way]:
    for _ in attempts():
        if search.over:
            return
        way = search.poll(unlimited=unlimited)
        if way is not None:
            yield way
        else:
            search.wait(1.0)


def wait_until_gone(folder: Path) -> None:
    """Return when no search has files in the folder, and no process is kept for another."""
    end_kept()

    def gone() -> bool:
        if not list(folder.glob(f"{PREFIX}*")):
            return True
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return False

    eventually(gone)


def processes_in(folder: Path) -> list[int]:
    """The process that builds backends in this folder, as a list of one, as soon as it has begun."""
    found: list[int] = []

    def begun() -> bool:
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = place.read_bytes().split(b"\0")
                if words[-2:-1] and words[-2].startswith(f"{folder}/{PREFIX}".encode()):
                    found.append(int(place.parent.name))
                    return True
        return False

    eventually(begun)
    return found
