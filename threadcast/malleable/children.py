"""What an attached process has started stays on its cores, unless it is attached itself."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from threadcast.core.errors import FormatError, NotFound, ServiceUnavailable
from threadcast.malleable.adjust import ThreadMasks
from threadcast.malleable.family import ancestors, descendants
from threadcast.malleable.messages import cpus_of
from threadcast.malleable.sockets import ask, is_alive, socket_of

ANSWER_S = 0.5


class Children:
    """Workers and other processes that this one has started, and those that these have.

    They inherit the mask of the thread that starts them; when the cores change they follow. One that has pinned itself
    keeps to what is left of its own CPUs. How many threads a child uses is its own affair.
    """

    def __init__(self) -> None:
        self._before: Collection[int] = os.sched_getaffinity(0)
        self._threads: dict[int, ThreadMasks] = {}

    def restrict(self, cpus: Collection[int]) -> None:
        """Let all of them run on `cpus` alone."""
        found = descendants(os.getpid(), without=_is_attached)
        self._threads = {
            child: self._threads.get(child) or ThreadMasks(child, unpinned=self._before) for child in found
        }  # fmt: skip
        for threads in self._threads.values():
            with suppress(OSError):  # it has ended
                threads.restrict(cpus)
        self._before = cpus


def inherited_limit() -> frozenset[int] | None:
    """The CPUs that this process may use where its own mask is no more than what an attached ancestor has just now.

    That one was given them, which says nothing of what its children may be given. None where there is none.
    """
    for ancestor in ancestors(os.getpid()):
        path = socket_of(ancestor)
        if path.exists():
            with suppress(NotFound, ServiceUnavailable, FormatError):
                answer = ask(path, {"limits": "all"}, ANSWER_S)
                limits, cores = (
                    frozenset(cpu for core in cpus_of(answer, name) for cpu in core) for name in ("limits", "cores")
                )
                return limits if os.sched_getaffinity(0) == cores else None
    return None


def _is_attached(process: int) -> bool:
    return socket_of(process).exists() and is_alive(socket_of(process))
