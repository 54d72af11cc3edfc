"""Sets where the threads of a process may run."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress

from threadcast.threads.process_cores import ProcessCores

_TRIES = 3


class ThreadMasks:
    """Sets the affinity masks of all threads of the process with the number `process` (None: this process).

    A thread that the program itself has pinned keeps those of its CPUs that are allowed, and gets the others back once
    they are allowed again. If none of its CPUs is allowed, it runs where the other threads run. `unpinned` is the mask
    of threads that the program has not pinned (None: the calling thread's mask). `cores` knows which threads of this
    process an engine has pinned temporarily. `given` are masks that its family was once given: what was forked from a
    thread that had not been moved yet has one of these.
    """

    def __init__(
        self, process: int | None = None, *, unpinned: Collection[int] | None = None, cores: ProcessCores | None = None,
        given: Collection[frozenset[int]] = (),
    ) -> None:  # fmt: skip
        self._tasks, self._cores = f"/proc/{process or 'self'}/task", cores
        self._given = given
        self._unpinned = os.sched_getaffinity(0) if unpinned is None else set(unpinned)
        self._own: dict[int, set[int]] = {}
        """Masks that the program itself has set, by thread id."""
        self._set: dict[int, set[int]] = {}
        """Masks that this object has last set, by thread id."""

    def restrict(self, cpus: Iterable[int]) -> None:
        """Let all threads run on `cpus` only, including those that start during this call."""
        wanted, done = set(cpus), set[int]()
        while new := set(map(int, os.listdir(self._tasks))) - done:
            for thread in new:
                with suppress(OSError):  # it has ended; or the cpuset has just changed, which the next look sees
                    self._place(thread, wanted)
            done |= new
        self._unpinned = wanted
        self._own = {thread: mask for thread, mask in self._own.items() if thread in done}
        self._set = {thread: mask for thread, mask in self._set.items() if thread in done}

    @property
    def pinned(self) -> bool:
        """Whether the program itself has pinned threads."""
        return bool(self._own)

    def mask_of(self, thread: int) -> frozenset[int]:
        """Return the mask that `restrict` has set for the thread with this id."""
        return frozenset(self._set.get(thread, self._unpinned))

    def _place(self, thread: int, wanted: set[int]) -> None:
        looked = False
        for _ in range(_TRIES):  # an engine may pin the thread between two of these lines
            if self._cores is not None and self._cores.release_pin(thread):
                self._own.pop(thread, None)
                self._set[thread] = wanted
                if not os.sched_getaffinity(thread) & wanted:
                    os.sched_setaffinity(thread, wanted)
                return
            now = os.sched_getaffinity(thread) if self._cores is None else self._cores.mask_of(thread)
            if now is None:
                continue
            before = self._set.get(thread, self._unpinned)  # which new threads inherit
            inherited = thread not in self._set and frozenset(now) in self._given
            if not looked and now not in (before, wanted) and not inherited:
                self._own[thread] = set(now)
            looked = True
            mask = self._own.get(thread, wanted) & wanted or wanted
            if mask != now:
                os.sched_setaffinity(thread, mask)
            self._set[thread] = mask
            if self._cores is None or self._cores.mask_of(thread) == frozenset(mask):
                return
