"""The cores that a process may use at most, as its container and whoever started it say at this moment."""

from __future__ import annotations

import os
import time
from pathlib import Path

from threadcast.core.cgroup import cpuset, quota_and_cpuset
from threadcast.core.topology import read_machine, usable_cores
from threadcast.threads.process_cores import ProcessCores

Cores = tuple[tuple[int, ...], ...]
"""Each core as the kernel's numbers of its hardware threads."""

SETTLE_S, SETTLE_LOOKS = 0.5, 6
"""After a change of the cpuset, in which it is the kernel that changes masks: a time, and so many looks of a process
that gets to run seldom."""


class Limits:
    """Reads the cgroup's quota and cpuset again and again; the affinity mask only once, since it is what is changed.

    A mask that somebody else sets (`taskset -p`) is taken for a new limit, but for what the kernel sets as the cpuset
    changes: `mine` are the CPUs that were set last.
    """

    def __init__(self, cores: ProcessCores, *, root: Path = Path("/"), mask: frozenset[int] | None = None) -> None:
        """`mask`: what stands for the affinity mask as it is now."""
        self._process, self._root = cores, root
        self._mine = frozenset(os.sched_getaffinity(os.getpid()))
        self._mask = self._mine if mask is None else mask
        self._cpuset = cpuset(root)
        self._settled_s, self._unsettled = 0.0, 0
        self._before: tuple[object, ...] = ()
        self.left: Cores = ()
        """What `cores` gave last."""
        self.cpus = frozenset[int]()
        """All that may be used; a quota may leave fewer cores than these make up."""
        self.moved = False
        """Whether the mask is another than was set last."""

    def restricted_to(self, cpus: frozenset[int]) -> None:
        """Note that this process's threads have been put on these CPUs by ourselves."""
        self._mine, self.moved = cpus, False

    def cores(self) -> Cores:
        """The cores that may be used, the fastest first; as many as the quota allows."""
        mask, (quota, allowed) = self._process.mask_of(os.getpid()), quota_and_cpuset(self._root)
        if allowed != self._cpuset:
            self._cpuset, self._settled_s, self._unsettled = allowed, time.monotonic() + SETTLE_S, SETTLE_LOOKS
        self._unsettled -= self._unsettled > 0
        if mask is not None and mask != self._mine:
            self._mine, self.moved = mask, True
            if time.monotonic() >= self._settled_s and not self._unsettled:
                self._mask = mask
        now = (self._mask, quota, allowed)
        if now != self._before:
            found = read_machine(self._root, affinity=self._mask)
            self.cpus = frozenset(usable_cores(self._root, affinity=self._mask).cpus)
            self.left, self._before = tuple(core.cpus for core in found.cores), now
        return self.left
