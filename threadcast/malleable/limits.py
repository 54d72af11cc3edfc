"""Reads which cores a process may use at most: those that its affinity mask, cpuset and CPU quota allow now."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

from threadcast.core.cgroup import CgroupLimits, read_cgroup_limits
from threadcast.core.topology import read_machine, usable_cores
from threadcast.threads.openmp import undo_binding
from threadcast.threads.process_cores import ProcessCores

Cores = tuple[tuple[int, ...], ...]
"""Cores, each as the tuple of its hardware threads' CPU numbers."""

SETTLE_S, SETTLE_LOOKS = 0.5, 6
"""Seconds, and number of looks, after a change of the cpuset during which the kernel may still change masks. The looks
are for processes that seldom get to run."""


def cpus_in(cores: Iterable[tuple[int, ...]]) -> frozenset[int]:
    """Return the CPU numbers of all hardware threads of these cores."""
    return frozenset(cpu for core in cores for cpu in core)


class Limits:
    """Finds the cores that this process may use, now and whenever `cores` is called again.

    Each call reads the cgroup's quota and cpuset. The affinity mask counts as a limit only as it was at first, because
    threadcast itself changes it later. A mask that somebody else sets (`taskset -p`) is a new limit, unless the kernel
    sets it because the cpuset changes, or OpenMP as it is loaded. While the cpuset has none of the mask's CPUs, the
    cpuset alone counts.

    The argument `cores` knows which threads are pinned temporarily. `mask` is the limit to use in place of the
    process's affinity mask (None: its mask). `root` is the folder with /proc and /sys. Where the process may open no
    more files, what was read last holds.
    """

    def __init__(self, cores: ProcessCores, *, root: Path = Path("/"), mask: frozenset[int] | None = None) -> None:
        self._process, self._root = cores, root
        # while an engine pins it, for a step, that of the thread which attaches
        self._set = cores.mask_of(os.getpid()) or frozenset(os.sched_getaffinity(0))
        """The main thread's mask as threadcast, the kernel or somebody else has last set it."""
        self.mask = self._set if mask is None else mask
        """The affinity mask that limits this process, whichever threadcast has set since."""
        self._cgroup = read_cgroup_limits(root)
        self._settled_s, self._unsettled_looks = 0.0, 0
        self._known: tuple[object, ...] = ()
        self.left: Cores = ()
        """The cores that `cores()` returned last."""
        self.cpus = frozenset[int]()
        """All CPUs that may be used; a CPU quota may allow fewer cores at a time than these."""
        self.moved = False
        """Whether the main thread's mask was changed since `restricted_to` was last called."""

    def restricted_to(self, cpus: frozenset[int]) -> None:
        """Record that threadcast has set the main thread's mask to these CPUs."""
        self._set, self.moved = cpus, False

    def cores(self) -> Cores:
        """Return the cores that may be used now, the fastest first; at most as many as the quota allows."""
        mask, before = self._process.mask_of(os.getpid()), self._cgroup
        limits = self._cgroup = self._cgroup_limits()
        if limits.cpuset != before.cpuset:
            self._settled_s, self._unsettled_looks = time.monotonic() + SETTLE_S, SETTLE_LOOKS
        self._unsettled_looks -= self._unsettled_looks > 0
        if mask is not None and mask != self._set:
            unbound = undo_binding()
            self._set, self.moved = unbound or mask, True
            if unbound is None and time.monotonic() >= self._settled_s and not self._unsettled_looks:
                self.mask = mask
        if (self.mask, limits) != self._known:
            both = self.mask & (limits.cpuset or self.mask) or limits.cpuset  # the kernel leaves a mask no other CPUs
            machine = read_machine(self._root, affinity=both)
            cpus = frozenset(usable_cores(self._root, affinity=both).cpus)
            if self.left and not self._can_open():
                return self.left
            self.cpus = cpus
            self.left, self._known = tuple(core.cpus for core in machine.cores), (self.mask, limits)
        return self.left

    def _cgroup_limits(self) -> CgroupLimits:
        """The cgroup's limits. A file that cannot be opened reads as one without a limit, so changes are confirmed."""
        found = read_cgroup_limits(self._root)
        if found != self._cgroup and not (self._can_open() and read_cgroup_limits(self._root) == found):
            return self._cgroup
        return found

    def _can_open(self) -> bool:
        """Whether this process may open one more file."""
        try:
            os.close(os.open(self._root, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return error.errno not in (errno.EMFILE, errno.ENFILE)
        return True
