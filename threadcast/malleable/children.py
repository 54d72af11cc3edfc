"""Keeps the processes that an attached process has started on its cores, unless they are attached themselves."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from threadcast.malleable.family import descendants
from threadcast.malleable.sockets import is_alive, socket_of
from threadcast.malleable.thread_masks import ThreadMasks


class Children:
    """Sets the affinity masks of this process's descendants.

    A child inherits the mask of the thread that starts it, and follows when the cores change. A child that has pinned
    itself keeps those of its own CPUs that are still allowed. How many threads a child uses is not changed.
    """

    def __init__(self) -> None:
        self._inherited: Collection[int] = os.sched_getaffinity(0)
        """The affinity mask that children have inherited since the last change."""
        self._masks: dict[int, ThreadMasks] = {}

    def restrict(self, cpus: Collection[int]) -> None:
        """Let all descendants run on these CPUs only."""
        found = descendants(os.getpid(), without=_is_attached)
        self._masks = {child: self._masks.get(child) or ThreadMasks(child, unpinned=self._inherited) for child in found}
        for masks in self._masks.values():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                masks.restrict(cpus)
        self._inherited = cpus


def _is_attached(process: int) -> bool:
    return socket_of(process).exists() and is_alive(socket_of(process))
