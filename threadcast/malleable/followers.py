"""Makes a process follow its cores: its threads, its children, its libraries and its optimised models."""

from __future__ import annotations

import os
from typing import Protocol

from threadcast.malleable.family_masks import FamilyMasks
from threadcast.malleable.library_threads import MainThread, set_library_threads, steerable_libraries
from threadcast.malleable.limits import Cores, cpus_in
from threadcast.malleable.other_threads import OtherThreads
from threadcast.malleable.thread_masks import ThreadMasks
from threadcast.threads.process_cores import ProcessCores


class Follows(Protocol):
    """What changes with a process's cores. For one thread at a time."""

    def apply(self, cores: Cores) -> frozenset[int]:
        """Let everything use these cores and no others; return the mask that this process's main thread has."""

    def catch_up(self) -> bool:
        """Apply the last change to what began since. Call this now and then; False where the process needs no cores."""


class Followers:
    """Changes everything in a process that depends on its cores. For one thread at a time."""

    def __init__(self, process: ProcessCores) -> None:
        self._process = process
        self._threads, self._children = ThreadMasks(cores=process), FamilyMasks()
        self._main, self._others = MainThread(), OtherThreads()
        self._cores: Cores = ()
        self._children_moved = False
        self._libraries = frozenset[str]()

    def apply(self, cores: Cores) -> frozenset[int]:
        """Let everything use these cores and no others; return the affinity mask that the main thread then has."""
        self._cores, cpus = cores, cpus_in(cores)
        self._process.assign(cpus)
        self._threads.restrict(cpus)
        self._children.restrict(cpus)
        self._children_moved = True
        self._set_library_threads()
        return self._threads.mask_of(os.getpid())

    def catch_up(self) -> bool:
        """Apply the last change to processes started and libraries imported since; always True."""
        if self._children_moved:  # a thread that had not been moved yet may have started one meanwhile
            self._children.restrict(cpus_in(self._cores))
            self._children_moved = False
        self._others.remove_when_done()
        if self._libraries != steerable_libraries():
            self._set_library_threads()
        return True

    def _set_library_threads(self) -> None:
        self._libraries, count = steerable_libraries(), len(self._cores)
        self._main.call(lambda: set_library_threads(count))
        self._others.set(count)
