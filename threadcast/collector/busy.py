"""Whether other processes use the CPUs that are to be timed, from /proc/stat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from threadcast.core.errors import BusyMachine, InvalidInput, MeasurementError

INTERVAL_S = 0.5
"""Time in seconds over which a load is measured: 50 of the ticks of 10 ms in which the kernel counts."""

LIMIT = 0.1
"""Largest share of the CPUs' time that other processes may use. One busy core in ten already moves medians by more
than the 2 % that timing asks for, since a team waits for its slowest thread."""

Cpu = int | tuple[int, ...]
"""A CPU, or the hardware threads of one core, which count as one: a team waits for a core on which others use any."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time used up to one moment, from /proc/stat and this process's clock.

    `ticks[cpu]` is (busy, stolen, all) since boot in the kernel's ticks, of a core the sum of what its hardware threads
    were busy and the time of one. `own_s` is the CPU time of this process and `time_s` the moment, both in seconds.
    """

    ticks: Mapping[Cpu, tuple[int, int, int]]
    own_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of CPU time, 0 to 1, that other processes used.

    `share` is that of all CPUs together, `busiest` that of the busiest one. `stolen` is the share that the hypervisor
    gave to another guest; it is part of the other two. `cpus` is the number of CPUs; a core counts as one.
    """

    share: float
    busiest: float
    stolen: float
    cpus: int


def read_cpu_times(
    cpus: Iterable[Cpu],
    *,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.monotonic,
    own_clock: Callable[[], float] = time.process_time,
) -> CpuTimes:
    """The CPU times of `cpus` now; MeasurementError where /proc/stat does not have them."""
    of_core = {cpu: (cpu,) if isinstance(cpu, int) else cpu for cpu in cpus}
    wanted = {one for threads in of_core.values() for one in threads}
    ticks: dict[int, tuple[int, int, int]] = {}
    path = root / "proc/stat"
    try:
        lines = path.read_text().splitlines()
        for line in lines:
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in wanted:
                # guest time, behind these eight, is in user time already
                user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
                busy = user + nice + system + interrupts + soft_interrupts + stolen
                ticks[int(name[3:])] = (busy, stolen, busy + idle + waiting)
    except (OSError, ValueError) as error:
        raise MeasurementError(f"{path} does not say how busy the cpus are: {error}") from error
    if missing := wanted - set(ticks):
        why = "LXCFS numbers those of a container anew; time anyway with --allow-busy"
        raise MeasurementError(f"{path} has no cpus {sorted(missing)}: {why}")
    of_cpus = {cpu: _together([ticks[one] for one in threads]) for cpu, threads in of_core.items()}
    return CpuTimes(of_cpus, own_clock(), clock())


def _together(threads: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    busy, stolen, total = map(sum, zip(*threads))
    return busy, stolen, total // len(threads)


def load_between(before: CpuTimes, after: CpuTimes) -> Load:
    """The load by other processes between two moments.

    This process's own CPU time is subtracted, also of the busiest.
    """
    cpus = len(after.ticks)
    busy, stolen, total, busiest = 0, 0, 0, 0.0
    for cpu, late in after.ticks.items():
        used, taken, passed = (now - then for now, then in zip(late, before.ticks[cpu]))
        busy, stolen, total = busy + used, stolen + taken, total + passed
        busiest = max(busiest, used / passed if passed > 0 else 0.0)
    if total <= 0 or after.time_s <= before.time_s:
        return Load(0.0, 0.0, 0.0, cpus)
    own = (after.own_s - before.own_s) / (after.time_s - before.time_s)
    share = min(max(busy / total - own / cpus, 0.0), 1.0)
    return Load(share, min(max(busiest - own, share), 1.0), min(stolen / total, 1.0), cpus)


def measure_load(
    cpus: Iterable[Cpu],
    *,
    interval_s: float = INTERVAL_S,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    own_clock: Callable[[], float] = time.process_time,
) -> Load:
    """Wait for `interval_s` seconds and return how much of `cpus` other processes used meanwhile."""
    watched = tuple(cpus)
    if not watched:
        raise InvalidInput("cpus is empty; name the cpus that are to be timed")
    before = read_cpu_times(watched, root=root, clock=clock, own_clock=own_clock)
    sleep(interval_s)
    return load_between(before, read_cpu_times(watched, root=root, clock=clock, own_clock=own_clock))


class LoadWatch:
    """Gives the load by other processes while something is measured; `read` returns the times of the CPUs to watch.

    Raises what `read` raises: MeasurementError where /proc/stat does not have them.
    """

    def __init__(self, read: Callable[[], CpuTimes]) -> None:
        self._read = read
        self._first = self._mark = self._last = read()
        self._recent: Load | None = None

    def recent(self) -> Load | None:
        """The load of the last half second or more; None before the first half second has passed."""
        self._last = self._read()
        if self._last.time_s - self._mark.time_s >= INTERVAL_S:
            self._recent, self._mark = load_between(self._mark, self._last), self._last
        return self._recent

    def overall(self) -> Load:
        """The load from the beginning up to the last call of `recent`."""
        return load_between(self._first, self._last)


def refuse_busy(load: Load, *, limit: float = LIMIT) -> None:
    """Raise BusyMachine when other processes use more than `limit` (a share, 0 to 1) of the CPUs' time."""
    if load.share > limit:
        stolen = f", {load.stolen:.0%} taken by other virtual machines" if load.stolen >= 0.005 else ""
        raise BusyMachine(
            f"others use {load.share:.0%} of the {load.cpus} cpus to time (the busiest {load.busiest:.0%}{stolen}); "
            f"the limit is {limit:.0%}. Stop them, or time anyway with --allow-busy"
        )
