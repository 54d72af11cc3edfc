"""The kinds of cores of a hybrid machine: each has a performance monitoring unit (PMU) of its own.

On such machines (Intel's performance and efficiency cores, Arm's big.LITTLE) an event is opened for one kind of core
and counts only while its thread runs on a core of that kind. Source: the kernel's
tools/perf/Documentation/intel-hybrid.txt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from threadcast.core.sysfs import read_cpus, read_int

_DEVICES = "sys/bus/event_source/devices"


@dataclass(frozen=True, slots=True)
class CorePmu:
    """One kind of core: the kernel's name and type of its PMU, and the CPUs that it counts."""

    name: str
    type: int
    cpus: frozenset[int]


def read_core_pmus(*, cpus: Iterable[int], root: Path = Path("/")) -> tuple[CorePmu, ...]:
    """The PMUs of the kinds of cores that `cpus` belong to, by name; empty where the machine has only one kind of core.

    A PMU of cores has a file `cpus`; those of memory controllers and the like have none.
    """
    wanted, found = frozenset(cpus), []
    try:
        devices = sorted((root / _DEVICES).iterdir())
    except OSError:
        return ()
    for device in devices:
        own, number = read_cpus(device / "cpus"), read_int(device / "type")
        if own and number is not None:
            found.append(CorePmu(device.name, number, own))
    return tuple(pmu for pmu in found if pmu.cpus & wanted) if len(found) > 1 else ()
