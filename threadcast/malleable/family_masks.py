"""Keeps processes on cores from outside: what an attached process has started, or a program that is not attached."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial

from threadcast.core.sysfs import read_text
from threadcast.malleable.family import Family, ProcessStatus
from threadcast.malleable.inherited_limit import mark_of
from threadcast.malleable.sockets import listener, socket_of
from threadcast.malleable.thread_masks import ThreadMasks

KEEPER = "threadcast-keep"
"""What `ps` and `top` show of keepers, which are never kept themselves."""


def is_keeper(process: int) -> bool:
    """Whether the process is a keeper of `malleable.keeper`."""
    return read_text(f"/proc/{process}/comm") == KEEPER


class FamilyMasks:
    """Sets the affinity masks of all threads of a process's family, except of those that are attached themselves.

    `program` is the process, which is set too, and `family` its family; None stands for this process, which is not. A
    child inherits the mask of the thread that starts it, and follows when the cores change. Threads that the program
    has pinned keep those of their CPUs that are still allowed. How many threads a child uses is not changed.
    `given` are masks that they were given before.
    """

    def __init__(
        self, program: int | None = None, family: Family | None = None, given: set[frozenset[int]] | None = None
    ) -> None:
        self._program, self._own = program, os.getpid()
        self._family = family or Family(self._own, mark_of(self._own))
        self._inherited: Collection[int] = os.sched_getaffinity(0)
        """The affinity mask that children have inherited since the last change."""
        self._given = set[frozenset[int]]() if given is None else given
        self._given.add(frozenset(self._inherited))
        self._masks: dict[int, ThreadMasks] = {}
        self.attached: set[int] = set()
        """Those that were attached themselves at the last change."""

    @property
    def pinned(self) -> bool:
        """Whether the program has pinned threads itself, as was seen at the last change."""
        return any(masks.pinned for masks in self._masks.values())

    def look_after(self, program: int, family: Family) -> None:
        """Let this be the program and its family; which masks were given so far stays known."""
        self._program, self._family = program, family

    def restrict(self, cpus: Collection[int]) -> Mapping[int, ProcessStatus]:
        """Let all of them run on these CPUs only; return their status by number."""
        self.attached = set()
        found = self._family.look(without=self._is_left_alone)
        if self._program is None:
            found.pop(self._own, None)
        self._given.add(frozenset(cpus))
        new = partial(ThreadMasks, unpinned=self._inherited, given=self._given)
        self._masks = {one: self._masks.get(one) or new(one) for one in found}
        for masks in self._masks.values():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                masks.restrict(cpus)
        self._inherited = cpus
        return found

    def _is_left_alone(self, process: int) -> bool:
        if is_keeper(process):
            return True
        path = socket_of(process)
        if process == self._own or not path.exists() or listener(path) in (None, self._own):
            return False
        self.attached.add(process)
        with suppress(OSError):  # once it has ended, what it leaves behind still has what it had
            self._given.add(frozenset(os.sched_getaffinity(process)))
        return True
