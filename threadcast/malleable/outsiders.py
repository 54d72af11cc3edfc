"""Reads how many of a machine's cores are used by processes that are not attached, and where these are pinned."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from threadcast.collector.busy import CpuTimes, load_between, read_cpu_times
from threadcast.core import Machine
from threadcast.core.errors import MeasurementError
from threadcast.malleable.placement import CoreIds


class Outsiders:
    """Reads from /proc/stat how much of the cores of `machine` others than the attached processes use.

    That is everybody's CPU time on these cores without the attached processes' own: of other users and containers too.
    What a hypervisor has taken is nobody's.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._before: CpuTimes | None = None

    def used(self, own_s: float, now_s: float) -> float | None:
        """Return how many cores others have used since the last call; None at first, and where /proc does not say.

        `own_s` is the CPU time in seconds that all attached processes have used so far.
        """
        cores = [core.cpus for core in self._machine.cores]
        try:
            now = read_cpu_times(cores, clock=lambda: now_s, own_clock=lambda: own_s)
        except MeasurementError:  # a container whose CPUs are numbered anew
            return None
        before, self._before = self._before, now
        if before is None:
            return None
        load = load_between(before, now)
        return (load.share - load.stolen) * load.cpus

    def pinned(self, own: Collection[int]) -> CoreIds:
        """Return the ids of cores to which running threads of processes not in `own` are pinned, most first."""
        core_of = {cpu: core.id for core in self._machine.cores for cpu in core.cpus}
        found: Counter[int] = Counter()
        for process in filter(str.isdecimal, os.listdir("/proc")):
            if int(process) not in own:
                for mask in _running(process):
                    if not mask.issuperset(core_of):
                        found.update({core_of[cpu] for cpu in mask if cpu in core_of})
        return tuple(core for core, _ in found.most_common())


def _running(process: str) -> list[frozenset[int]]:
    """The masks of a process's threads that run or could."""
    found = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                stat = Path(f"/proc/{process}/task/{thread}/stat").read_bytes()
                if stat.rpartition(b")")[2].split()[0] == b"R":
                    found.append(frozenset(os.sched_getaffinity(int(thread))))
    return found
