"""Whether other processes use the CPUs that are to be timed, from /proc/stat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from threadcast.core.errors import BusyMachine, InvalidInput, MeasurementError

INTERVAL_S = 0.5
"""Long enough for a share to mean something: the kernel counts in ticks of 10 ms, 50 of them here."""

LIMIT = 0.1
"""Share of the cpus that others may use. One busy core in ten already moves medians by more than the 2 % that
timing asks for, since a team waits for its slowest thread."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time used at one moment, as /proc/stat and this process's clock say.

    `ticks[cpu]` is (busy, stolen, all) since boot in the kernel's ticks; `own_s` this process's cpu seconds.
    """

    ticks: Mapping[int, tuple[int, int, int]]
    own_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of the cpus' time, 0 to 1, that others used: all of them, the busiest one, and what was stolen.

    Stolen time, when the hypervisor ran another guest instead, is part of the other two.
    """

    share: float
    busiest: float
    stolen: float
    cpus: int


def read_cpu_times(
    cpus: Iterable[int],
    *,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.monotonic,
    own_clock: Callable[[], float] = time.process_time,
) -> CpuTimes:
    """Read the counts of `cpus`; MeasurementError where the kernel does not give them."""
    wanted, ticks = set(cpus), {}
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
        raise MeasurementError(f"{path} has no cpus {sorted(missing)}")
    return CpuTimes(ticks, own_clock(), clock())


def load_between(before: CpuTimes, after: CpuTimes) -> Load:
    """The load of others between two moments; this process's own use is taken off, from the busiest cpu too."""
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
    return Load(share, min(max(busiest - own, share), 1.0), stolen / total, cpus)


def measure_load(
    cpus: Iterable[int],
    *,
    interval_s: float = INTERVAL_S,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    own_clock: Callable[[], float] = time.process_time,
) -> Load:
    """Wait for `interval_s` and return how much of `cpus` other processes used meanwhile."""
    watched = tuple(cpus)
    if not watched:
        raise InvalidInput("cpus is empty; name the cpus that are to be timed")
    before = read_cpu_times(watched, root=root, clock=clock, own_clock=own_clock)
    sleep(interval_s)
    return load_between(before, read_cpu_times(watched, root=root, clock=clock, own_clock=own_clock))


class LoadWatch:
    """Tells the load by other processes while something is measured; `read` gives the times of the CPUs to watch.

    Raises MeasurementError where the kernel does not give them.
    """

    def __init__(self, read: Callable[[], CpuTimes]) -> None:
        self._read = read
        self._first = self._mark = self._last = read()
        self._recent: Load | None = None

    def recent(self) -> Load | None:
        """The load of the last half second or more; None before the first has passed."""
        self._last = self._read()
        if self._last.time_s - self._mark.time_s >= INTERVAL_S:
            self._recent, self._mark = load_between(self._mark, self._last), self._last
        return self._recent

    def overall(self) -> Load:
        """The load from the beginning up to the last look."""
        return load_between(self._first, self._last)


def refuse_busy(load: Load, *, limit: float = LIMIT) -> None:
    """Raise BusyMachine when others use more than `limit` of the cpus."""
    if load.share > limit:
        stolen = f", {load.stolen:.0%} taken by other virtual machines" if load.stolen >= 0.005 else ""
        raise BusyMachine(
            f"others use {load.share:.0%} of the {load.cpus} cpus to time (the busiest {load.busiest:.0%}{stolen}); "
            f"the limit is {limit:.0%}. Stop them, or time anyway with --allow-busy"
        )
