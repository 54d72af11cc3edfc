"""The CPUs that a process is asked to keep to, and the parts of it that are called when these change."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Protocol

_logger = logging.getLogger("threadcast")


class Pinner(Protocol):
    """A part of this process that pins threads for a while and restores their masks later (the native engine)."""

    def send_home(self, thread: int) -> bool:
        """If the thread is pinned now, set its mask to the process's CPUs, not to its former mask.

        Return whether it was.
        """

    def is_pinned(self, thread: int) -> tuple[bool, int]:
        """Whether the thread is pinned now, and how often this pinner has pinned any thread."""


class ProcessCores:
    """The CPUs that this process is asked to keep to: by an arbiter, by `threadcast resize`, or by its container.

    Code that decides on the CPUs calls `assign`; code that runs threads reads `cpus` and calls `subscribe`. Safe to use
    from several threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._cpus: frozenset[int] | None = None
        self._subscribers: list[Callable[[], Callable[[frozenset[int]], None] | None]] = []
        self._pinners: list[Pinner] = []

    @property
    def cpus(self) -> frozenset[int] | None:
        """The kernel's numbers of the CPUs.

        None until `assign` is first called: until then only the affinity mask counts.
        """
        return self._cpus

    def assign(self, cpus: Iterable[int]) -> None:
        """Set the CPUs and call all subscribers with them, one after the other, in the calling thread.

        A subscriber that raises is logged; the others are called nevertheless.
        """
        with self._lock:
            self._cpus = now = frozenset(cpus)
            self._subscribers[:] = [reference for reference in self._subscribers if reference() is not None]
            references = list(self._subscribers)
        for reference in references:
            if (callback := reference()) is not None:
                try:
                    callback(now)
                except Exception:
                    _logger.exception("the cores of this process have changed, and a part of it could not follow")

    def subscribe(self, callback: Callable[[frozenset[int]], None]) -> None:
        """Have `callback` called at each `assign`. A bound method does not keep its object alive."""
        reference = weakref.WeakMethod(callback) if hasattr(callback, "__self__") else (lambda: callback)
        with self._lock:
            self._subscribers.append(reference)

    def add_pinner(self, pinner: Pinner) -> None:
        """Register a pinner, so that a mask that it has set for a while is not taken for the program's own."""
        with self._lock:
            self._pinners.append(pinner)

    def release_pin(self, thread: int) -> bool:
        """If a pinner has pinned the thread (kernel id), set its mask to the assigned CPUs; return whether one had."""
        return sum(pinner.send_home(thread) for pinner in list(self._pinners)) > 0

    def mask_of(self, thread: int) -> frozenset[int] | None:
        """The CPUs that a thread of this process (kernel id) may run on; None while a pinner has pinned it."""
        before = [pinner.is_pinned(thread) for pinner in list(self._pinners)]
        mask = frozenset(os.sched_getaffinity(thread))
        after = [pinner.is_pinned(thread) for pinner in list(self._pinners)]
        return mask if before == after and not any(pinned for pinned, _ in before) else None
