"""Reads how this user's processes use the machine: threads that run or wait, pinning, and quotas that stop them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from threadcast.collector.busy import CpuTimes, load_between, read_cpu_times
from threadcast.core import Machine
from threadcast.core.cgroup import read_cgroup_limits, read_throttling
from threadcast.core.errors import MeasurementError
from threadcast.malleable.family import process_status, thread_times

LEAST = 0.05
"""Threads on average below which a thread, or a process, counts as idle."""
_INTERPRETERS = ("python", "node", "java", "perl", "ruby", "sh", "bash")
_VARIABLES = (
    (b"libgomp", "OMP_NUM_THREADS"), (b"libomp", "OMP_NUM_THREADS"), (b"libiomp5", "OMP_NUM_THREADS"),
    (b"libmkl", "MKL_NUM_THREADS"), (b"openblas", "OPENBLAS_NUM_THREADS"), (b"libjulia", "JULIA_NUM_THREADS"),
    (b"/node", "UV_THREADPOOL_SIZE"),
)  # fmt: skip
"""What a process has loaded, and the variable by which its user sets how many threads that makes."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """How one process has used the machine for a while; numbers are means over that time.

    Of its threads, `runnable` ran or waited for a CPU, which is `used` cores and the rest waiting. `busy` is the number
    of threads that did so at all, `cpus` where they may run. A quota of `quota` CPUs stopped it in the share
    `throttled` of the kernel's periods. `variable` sets how many threads it makes.
    """

    process: int
    name: str
    threads: int
    busy: int
    runnable: float
    used: float
    cpus: frozenset[int]
    throttled: float = 0.0
    quota: float | None = None
    variable: str = "OMP_NUM_THREADS"

    @property
    def waiting(self) -> float:
        """The share of their time, 0 to 1, for which threads that could run waited for a CPU."""
        return 1 - self.used / self.runnable if self.runnable > 0 else 0.0


@dataclass(frozen=True, slots=True)
class MachineUse:
    """How a machine of so many `cores` was used: `processes` by this user's, those that want most first.

    `used` cores were used by anybody (None: /proc does not say), `idle` are the CPUs of cores that were mostly idle,
    `cpus` those that may be used.
    """

    cores: int
    cpus: frozenset[int]
    processes: tuple[ProcessUse, ...]
    used: float | None = None
    idle: frozenset[int] = frozenset()

    @property
    def runnable(self) -> float:
        """How many threads of this user's ran or waited for a CPU."""
        return sum(one.runnable for one in self.processes)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What /proc says of a process at one moment."""

    times: Mapping[int, tuple[float, float]]
    throttling: tuple[int, int]


def watch_use(machine: Machine, every_s: float, sleep: Callable[[float], None] = time.sleep) -> MachineUse:
    """Return how `machine` is used in the next `every_s` seconds, in which this waits."""
    before, load, began_s = _read_all(), _cpu_times(machine), time.monotonic()
    sleep(every_s)
    after, elapsed_s = _read_all(), time.monotonic() - began_s
    found = [_use(one, before.get(one), now, elapsed_s) for one, now in after.items()]
    uses = sorted((one for one in found if one.runnable >= LEAST), key=lambda one: -one.runnable)
    cpus = frozenset(cpu for core in machine.cores for cpu in core.cpus)
    if load is None or (now_load := _cpu_times(machine)) is None:
        return MachineUse(len(machine), cpus, tuple(uses))
    idle = frozenset(
        cpu for cpus, (busy, _, every) in now_load.ticks.items() if isinstance(cpus, tuple)
        for cpu in cpus if busy - load.ticks[cpus][0] < (every - load.ticks[cpus][2]) / 2
    )  # fmt: skip
    share = load_between(load, now_load).share
    return MachineUse(len(machine), cpus, tuple(uses), share * len(machine), idle)


def _cpu_times(machine: Machine) -> CpuTimes | None:
    with suppress(MeasurementError):
        return read_cpu_times([core.cpus for core in machine.cores], own_clock=float)
    return None


def _read_all() -> dict[int, _Reading]:
    """This user's processes, without the kernel's own."""
    found, user = {}, os.geteuid()
    for process in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with suppress(OSError):
            if os.stat(f"/proc/{process}").st_uid == user and os.readlink(f"/proc/{process}/exe"):
                status = process_status(process)
                times = thread_times(process) or {process: (status.cpu_s if status else 0.0, 0.0)}
                found[process] = _Reading(times, read_throttling(process=str(process)))
    return found


def _use(process: int, before: _Reading | None, now: _Reading, elapsed_s: float) -> ProcessUse:
    known = before.times if before else {}
    spent = [
        (run_s - known.get(thread, (0.0, 0.0))[0], wait_s - known.get(thread, (0.0, 0.0))[1])
        for thread, (run_s, wait_s) in now.times.items()
    ]
    used, runnable = (sum(one) / elapsed_s for one in ([run for run, _ in spent], [run + wait for run, wait in spent]))
    periods, stopped = (b - a for a, b in zip(before.throttling if before else now.throttling, now.throttling))
    busy = sum(run + wait >= LEAST * elapsed_s for run, wait in spent)
    if runnable < LEAST:
        return ProcessUse(process, "", len(spent), busy, runnable, used, frozenset())
    masks = []
    for thread in now.times:
        with suppress(OSError):
            masks.append(os.sched_getaffinity(thread))
    return ProcessUse(
        process, _name(process), len(spent), busy, runnable, used, frozenset().union(*masks),
        stopped / periods if periods > 0 else 0.0, read_cgroup_limits(process=str(process)).quota, _variable(process),
    )  # fmt: skip


def _name(process: int) -> str:
    with suppress(OSError):
        words = [os.fsdecode(word) for word in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0") if word]
        program = os.path.basename(words[0]) if words else ""
        script = next((word for word in words[1:] if not word.startswith("-") or word in ("-c", "-e")), "")
        return f"{program} {os.path.basename(script)}" if program.startswith(_INTERPRETERS) and script else program
    return ""


def _variable(process: int) -> str:
    with suppress(OSError):
        loaded = Path(f"/proc/{process}/maps").read_bytes()
        return next((variable for library, variable in _VARIABLES if library in loaded), "OMP_NUM_THREADS")
    return "OMP_NUM_THREADS"
