"""The cores that a process may use at most: what its affinity mask, cpuset and CPU quota leave it at this moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from threadcast.core.cgroup import read_cgroup_limits
from threadcast.core.topology import read_machine, usable_cores
from threadcast.threads.process_cores import ProcessCores

Cores = tuple[tuple[int, ...], ...]
"""Each core as the kernel's numbers of its hardware threads."""

SETTLE_S, SETTLE_LOOKS = 0.5, 6
"""After a change of the cpuset, in which it is the kernel that changes masks: a time, and so many looks of a process
that gets to run seldom."""


def cpus_in(cores: Iterable[tuple[int, ...]]) -> frozenset[int]:
    """All hardware threads of these cores."""
    return frozenset(cpu for core in cores for cpu in core)


class Limits:
    """Reads the cgroup's quota and cpuset anew at every look; the affinity mask only once, as it is what is changed.

    A mask that somebody else sets later (`taskset -p`) is a new limit, unless it is what the kernel sets while the
    cpuset changes. `cores` knows which threads are pinned for a while; `mask` stands for the affinity mask that the
    process has now.
    """

    def __init__(self, cores: ProcessCores, *, root: Path = Path("/"), mask: frozenset[int] | None = None) -> None:
        self._process, self._root = cores, root
        self._set = frozenset(os.sched_getaffinity(os.getpid()))
        """The main thread's mask as it was last set here, or by the kernel."""
        self._mask = self._set if mask is None else mask
        self._cpuset = read_cgroup_limits(root).cpuset
        self._settled_s, self._unsettled_looks = 0.0, 0
        self._known: tuple[object, ...] = ()
        self.left: Cores = ()
        """What `cores` returned last."""
        self.cpus = frozenset[int]()
        """All CPUs that may be used; a quota may leave fewer cores than these make up."""
        self.moved = False
        """Whether the main thread's mask is another than `restricted_to` was last called with."""

    def restricted_to(self, cpus: frozenset[int]) -> None:
        """Note that this process itself has set its main thread's mask to these CPUs."""
        self._set, self.moved = cpus, False

    def cores(self) -> Cores:
        """The cores that may be used now, the fastest first; as many as the quota allows."""
        mask, limits = self._process.mask_of(os.getpid()), read_cgroup_limits(self._root)
        if limits.cpuset != self._cpuset:
            self._cpuset = limits.cpuset
            self._settled_s, self._unsettled_looks = time.monotonic() + SETTLE_S, SETTLE_LOOKS
        self._unsettled_looks -= self._unsettled_looks > 0
        if mask is not None and mask != self._set:
            self._set, self.moved = mask, True
            if time.monotonic() >= self._settled_s and not self._unsettled_looks:
                self._mask = mask
        if (self._mask, limits) != self._known:
            machine = read_machine(self._root, affinity=self._mask)
            self.cpus = frozenset(usable_cores(self._root, affinity=self._mask).cpus)
            self.left, self._known = tuple(core.cpus for core in machine.cores), (self._mask, limits)
        return self.left
