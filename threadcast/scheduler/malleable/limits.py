"""The cores that a process may use at most, as its container and whoever started it say at this moment."""

from __future__ import annotations

import os
from pathlib import Path

from threadcast.core.cgroup import cpu_quota, cpuset
from threadcast.core.given_cpus import mask_of
from threadcast.core.topology import read_machine

Cores = tuple[tuple[int, ...], ...]
"""Each core as the kernel's numbers of its hardware threads."""


class Limits:
    """Reads the cgroup's quota and cpuset again and again; the affinity mask only once, since it is what is changed.

    A mask that somebody else sets (`taskset -p`) is taken for a new limit: `mine` are the CPUs that were set last.
    """

    def __init__(self, root: Path = Path("/"), *, mask: frozenset[int] | None = None) -> None:
        """`mask`: what stands for the affinity mask as it is now."""
        self._root = root
        self._mine = frozenset(os.sched_getaffinity(os.getpid()))
        self._mask = self._mine if mask is None else mask
        self._before: tuple[object, ...] = ()
        self._cores: Cores = ()

    def restricted_to(self, cpus: frozenset[int]) -> None:
        """Note that this process's threads have been put on these CPUs by ourselves."""
        self._mine = cpus

    def cores(self) -> Cores:
        """The cores that may be used, the fastest first; as many as the quota allows."""
        mask = mask_of(os.getpid())
        if mask is not None and mask != self._mine:
            self._mask = self._mine = mask
        now = (self._mask, cpu_quota(self._root), cpuset(self._root))
        if now != self._before:
            found = read_machine(self._root, affinity=self._mask)
            self._cores, self._before = tuple(core.cpus for core in found.cores), now
        return self._cores
