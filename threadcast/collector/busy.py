"""Whether other processes use the CPUs that are to be timed, from /proc/stat; waits for a moment when they do not."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadcast.core import Machine
from threadcast.core.errors import MeasurementError
from threadcast.core.measurement import DISTURBED

INTERVAL_S = 0.5
"""Time in seconds over which a load is measured: 50 of the ticks of 10 ms in which the kernel counts."""

WAIT_S = 30.0
"""Longest wait for a quiet moment, in seconds from when the watch was made: a command does not take forever. A
convention."""

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

    @property
    def disturbs(self) -> bool:
        """Whether what is timed meanwhile is disturbed."""
        return self.share > DISTURBED

    def said(self, verb: str) -> str:
        """A clause in words; `verb` is "use" or "used"."""
        stolen = f", {self.stolen:.0%} taken by other virtual machines" if self.stolen >= 0.005 else ""
        return f"others {verb} {self.share:.0%} of the {self.cpus} cpus (the busiest {self.busiest:.0%}{stolen})"


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
        raise MeasurementError(f"{path} has no cpus {sorted(missing)}: LXCFS numbers those of a container anew")
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


class LoadWatch:
    """The load by other processes while something is timed, after a wait for a moment when there is little.

    `read` returns the times of the CPUs to watch. Where it raises MeasurementError nothing is waited for, and every
    load is None: it is not known.
    """

    def __init__(self, read: Callable[[], CpuTimes], *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._read, self._sleep = read, sleep
        self._readings: deque[CpuTimes] = deque()
        self._said = False
        self._take()
        self._first = self._made = self._readings[-1] if self._readings else None

    @classmethod
    def of(cls, machine: Machine) -> LoadWatch:
        """A watch over the cores of `machine`, which are those of this computer: all their hardware threads, as the
        second ones slow down the first."""
        cores = [core.cpus for core in machine.cores]
        return cls(lambda: read_cpu_times(cores))

    def wait(self, say: Callable[[str], object] = lambda text: None) -> Load | None:
        """Wait until others have used at most `DISTURBED` of the CPUs for half a second, at most until `WAIT_S` seconds
        after the watch was made; return the load of the last half second. `overall` begins anew. `say` is called once,
        with a line for the user, where the first half second was not quiet."""
        if self._made is None:
            return None
        self._readings.clear()
        self._take()
        if not self._readings:
            return None
        load = self._next()
        left_s = WAIT_S - self._since_made_s()
        if load and load.disturbs and not self._said:
            self._said = True
            waiting = f"waiting up to {left_s:.0f} s for a quiet moment" if left_s > 0 else "what they disturb is told"
            say(f"{load.said('use')}: {waiting}")
        while load and load.disturbs and self._since_made_s() < WAIT_S:
            load = self._next()
        self._first = self._readings[-1]
        return load

    def _next(self) -> Load | None:
        self._sleep(INTERVAL_S)
        return self.recent()

    def _since_made_s(self) -> float:
        return self._readings[-1].time_s - self._made.time_s if self._made else 0.0

    def recent(self) -> Load | None:
        """The load of the last half second or a little more; None before the first half second has passed."""
        self._take()
        while len(self._readings) > 1 and self._passed_s(1) >= INTERVAL_S:
            self._readings.popleft()
        if not self._readings or self._passed_s(0) < INTERVAL_S:
            return None
        return load_between(self._readings[0], self._readings[-1])

    def overall(self) -> Load | None:
        """The load from the last wait, or else from the beginning, up to the last call of `recent`; None where nothing
        was read since."""
        if self._first is None or not self._readings or self._readings[-1].time_s <= self._first.time_s:
            return None
        return load_between(self._first, self._readings[-1])

    def _take(self) -> None:
        with suppress(MeasurementError):
            self._readings.append(self._read())

    def _passed_s(self, since: int) -> float:
        return self._readings[-1].time_s - self._readings[since].time_s


def load_document(load: Load | None, *, disturbed: bool | None = None, what: str = "") -> dict[str, Any]:
    """The members of a command's document on the load meanwhile, null where it is not known, and a sentence on it.

    `disturbed` says whether what counts was, where that is known better than by the load of the whole time; `what` says
    what was.
    """
    if load is None:
        return {"others_share": None, "disturbed": disturbed, "load": "how busy others kept the cpus is not known here"}
    disturbed = load.disturbs if disturbed is None else disturbed
    text = load.said("used")
    if disturbed:
        text = f"disturbed: {text}, so {what or 'times'} may be too long"
    return {"others_share": load.share, "disturbed": disturbed, "load": text}
