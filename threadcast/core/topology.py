"""What this process may use of the machine that it runs on: `usable_cores`, `read_machine` and `whole_cores`.

All read /proc and /sys below a root path and never fail: where a file is missing or garbled, the simplest case is
assumed (one thread per core, no shared cache, one socket).
"""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from threadcast.core.cgroup import read_cgroup_limits
from threadcast.core.errors import InvalidInput
from threadcast.core.machine import LEAST_HZ, MOST_HZ, Cache, Core, Machine, cache_groups
from threadcast.core.openmp_places import before_binding
from threadcast.core.sysfs import format_cpus, numbered, read_cpus, read_int, read_text

_CPU = "sys/devices/system/cpu"

_SAME_SPEED = 0.9
"""Cores within this ratio of the next faster one count as equally fast. Favoured cores of one kind differ by up to
6 %, performance and efficiency cores by 20 % and more (cpuinfo_max_freq of Intel and AMD desktop parts)."""

_STOPPED = 0.002
"""Share of the time for which a quota may stop a team, for the sake of one core more: who computes quotas gives 1.99999
CPUs for two, and 3.996 for four less a little. Far below what timings differ by."""

_ARM_PARTS = {
    ("0x41", "0xd0c"): "Neoverse N1", ("0x41", "0xd40"): "Neoverse V1", ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2", ("0x41", "0xd83"): "Neoverse V3AE", ("0x41", "0xd84"): "Neoverse V3",
    ("0x41", "0xd8e"): "Neoverse N3", ("0x41", "0xd08"): "Cortex-A72", ("0x41", "0xd0b"): "Cortex-A76",
    ("0x46", "0x001"): "A64FX", ("0x48", "0xd01"): "Kunpeng 920", ("0xc0", "0xac3"): "Ampere 1",
    ("0xc0", "0xac4"): "Ampere 1A",
}  # fmt: skip
"""Arm kernels name no model. Implementer and part as in the MIDR_EL1 register, names as in lscpu (util-linux)."""


@dataclass(frozen=True, slots=True)
class UsableCores:
    """The CPUs and the number of cores that this process may use.

    `cpus` are the kernel's CPU numbers that affinity and cpuset allow, ascending. `cores` is the number of whole cores
    that it should use: hardware threads of one core count once, and a quota is rounded down. `quota` is in CPUs, None
    without one. `limited_by` says what prevents the use of the whole machine ("cgroup quota of 1.5 CPUs"); None where
    nothing does.
    """

    cpus: tuple[int, ...]
    cores: int
    quota: float | None = None
    limited_by: str | None = None


def usable_cores(root: Path = Path("/"), *, affinity: Iterable[int] | None = None) -> UsableCores:
    """Return what this process may use, by affinity mask, cpuset, cgroup v1 and v2 quota, and whole cores under SMT.

    `affinity` is used as the mask; None asks the kernel for the calling thread's. Where OpenMP has bound that thread,
    the mask before it did so counts.
    """
    limits = read_cgroup_limits(root)
    if affinity is None:  # the kernel's is within the cpuset already, and without offline CPUs
        cpus = frozenset(os.sched_getaffinity(0))
        if cpus != limits.cpuset and cpus != read_cpus(root / _CPU / "online"):
            cpus = before_binding(cpus)
    else:
        mask = frozenset(affinity)
        cpus = mask & (limits.cpuset or mask) or mask
        cpus = frozenset(cpu for cpu in cpus if read_int(root / _CPU / f"cpu{cpu}/online") != 0) or cpus
    if not cpus:
        raise InvalidInput("affinity is empty: a process runs on at least one CPU")
    machine = _all_cpus(root, cpus)
    cores, quota = len(_hardware_threads(root, cpus)), limits.quota
    limit = None
    if cpus < (machine & (limits.cpuset or machine) or machine):
        limit = f"affinity mask {format_cpus(cpus)}"
    elif cpus < machine:
        limit = f"cpuset {format_cpus(cpus)}"
    # Rounded down: a step is a chain of barriers. With two threads on 1.5 CPUs the kernel stops both for a quarter of
    # every period, in the middle of some op, waiting threads burn quota as they spin, and no forecast of an
    # op's seconds holds; the half CPU left over serves the interpreter, the loader and the system.
    if quota is not None and quota < cores * (1 - _STOPPED):
        cores, limit = max(1, math.floor(quota / (1 - _STOPPED))), f"cgroup quota of {quota:g} CPUs"
    return UsableCores(tuple(sorted(cpus)), cores, quota, limit)


def _all_cpus(root: Path, cpus: frozenset[int]) -> frozenset[int]:
    """All CPUs of the machine, as far as its lists know `cpus`: LXCFS and Sysbox number those of a container anew."""
    lists = read_cpus(root / _CPU / "online"), frozenset(cpu for cpu, _ in numbered(root / _CPU, "cpu"))
    return next((known for known in lists if known and cpus <= known), cpus)


def read_machine(root: Path = Path("/"), *, affinity: Iterable[int] | None = None, cores: int | None = None) -> Machine:
    """Return the part of the machine that this process may use, fastest cores first, cores numbered in that order.

    A cache group is formed by the innermost cache that some but not all of the cores share. `cores` limits the number
    further; InvalidInput if it is more than `usable_cores` allows. Under a quota alone the first cores are used: two
    containers that both pin their threads there slow each other down, which only a cpuset prevents.
    """
    usable = usable_cores(root, affinity=affinity)
    count = usable.cores if cores is None else cores
    if not 1 <= count <= usable.cores:
        why = f" ({usable.limited_by})" if usable.limited_by else ""
        raise InvalidInput(f"cores={count} must be from 1 to the {usable.cores} usable cores{why}")
    found = _cores(root, frozenset(usable.cpus))
    caches = _caches(root, found)
    found = [replace(core, group=group) for core, group in zip(found, cache_groups(found, caches), strict=True)]
    order = _fastest_first(root, found)
    number = {core.id: i for i, core in enumerate(order)}
    renumbered = tuple(replace(core, id=number[core.id]) for core in order)
    caches = tuple(replace(cache, cores=tuple(sorted(number[c] for c in cache.cores))) for cache in caches)
    machine = Machine(_name(root), renumbered, tuple(sorted(caches, key=lambda c: (c.level, c.cores))))
    return machine.limited_to(range(count))


def whole_cores(cpus: Iterable[int], root: Path = Path("/")) -> frozenset[int]:
    """Return these CPUs and the others of their cores, whether this process may use them or not."""
    return frozenset(one for cpu in cpus for one in (cpu, *_siblings(root, cpu)))


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """The CPUs of this one's core; empty where the kernel does not say."""
    topology = root / _CPU / f"cpu{cpu}/topology"
    return read_cpus(topology / "core_cpus_list") or read_cpus(topology / "thread_siblings_list") or frozenset()


def _hardware_threads(root: Path, cpus: frozenset[int]) -> list[tuple[int, ...]]:
    """`cpus` by core, in order of each core's first one. A CPU that is not described belongs where another one says."""
    siblings = {cpu: found for cpu in sorted(cpus) if cpu in (found := _siblings(root, cpu))}
    said = {cpu: found for found in siblings.values() for cpu in found}
    threads: dict[object, list[int]] = {}
    for cpu in sorted(cpus):
        place = siblings.get(cpu) or said.get(cpu) or _place(root / _CPU / f"cpu{cpu}/topology")
        threads.setdefault(place or cpu, []).append(cpu)
    return list(map(tuple, threads.values()))


def _place(topology: Path) -> tuple[int | None, ...] | None:
    place = tuple(read_int(topology / name) for name in ("physical_package_id", "die_id", "core_id"))
    return place if place[2] is not None else None


def _cores(root: Path, cpus: frozenset[int]) -> list[Core]:
    """The cores that `cpus` belong to, each with its first CPU as its id; without cache groups yet."""
    nodes, cores = _nodes(root), []
    for own in _hardware_threads(root, cpus):
        base = root / _CPU / f"cpu{own[0]}"
        socket = max(read_int(base / "topology/physical_package_id") or 0, 0)  # -1 where firmware does not say
        khz = read_int(base / "cpufreq/cpuinfo_max_freq")
        hz = khz * 1e3 if khz and LEAST_HZ <= khz * 1e3 <= MOST_HZ else None  # virtual machines may say anything
        cores.append(Core(own[0], own, group=0, node=nodes.get(own[0], 0), socket=socket, max_hz=hz))
    return cores


def _nodes(root: Path) -> dict[int, int]:
    nodes: dict[int, int] = {}
    for node, path in numbered(root / "sys/devices/system/node", "node"):
        nodes.update(dict.fromkeys(read_cpus(path / "cpulist") or (), node))
    return nodes


def _caches(root: Path, cores: list[Core]) -> tuple[Cache, ...]:
    """The data and unified caches of these cores, each listed once."""
    core_of = {cpu: core.id for core in cores for cpu in core.cpus}
    found: dict[tuple[int, tuple[int, ...]], Cache] = {}
    for core in cores:
        for _, index in numbered(root / _CPU / f"cpu{core.cpus[0]}/cache", "index"):
            level, size = read_int(index / "level"), _size_bytes(read_text(index / "size") or "")
            if level is None or level < 1 or read_text(index / "type") == "Instruction":
                continue
            shared = read_cpus(index / "shared_cpu_list") or frozenset()
            sharers = tuple(sorted({core_of[cpu] for cpu in (*shared, core.cpus[0]) if cpu in core_of}))
            found.setdefault((level, sharers), Cache(level, size, sharers))
    return tuple(found.values())


def _size_bytes(text: str) -> int:
    number, unit = text.rstrip("KMG"), text[-1:]
    return int(number) << {"K": 10, "M": 20, "G": 30}.get(unit, 0) if number.isdigit() else 0


def _fastest_first(root: Path, cores: list[Core]) -> list[Core]:
    """Cores by speed class; within a class by socket, with groups together, larger sockets, nodes and groups first.

    So equal parts of a machine have their cores in the same order, wherever their CPUs lie.
    """
    speeds = {core.id: _speed(root, core) for core in cores}
    classes, rank, last = {}, 0, 0.0
    for speed in sorted(set(speeds.values()), reverse=True):
        rank += last > 0 and speed < last * _SAME_SPEED
        classes[speed], last = rank, speed
    size = {name: Counter(getattr(core, name) for core in cores) for name in ("socket", "node", "group")}
    rank_of_group: dict[int, tuple[int, ...]] = {}
    for core in cores:
        places = ((-size["socket"][core.socket], core.socket), (-size["node"][core.node], core.node))
        key = (classes[speeds[core.id]], *places[0], *places[1], -size["group"][core.group], core.id)
        rank_of_group[core.group] = min(rank_of_group.get(core.group, key), key)
    return sorted(cores, key=lambda core: (rank_of_group[core.group], classes[speeds[core.id]], core.id))


def _speed(root: Path, core: Core) -> float:
    """Relative speed: the kernel's capacity where there is one (it takes more into account), else the frequency."""
    capacity = read_int(root / _CPU / f"cpu{core.cpus[0]}/cpu_capacity")
    return float(capacity or core.max_hz or 0.0)


def _name(root: Path) -> str:
    fields = _cpuinfo(root)
    for key in ("model name", "cpu", "uarch", "cpu model"):  # x86, POWER, RISC-V, MIPS
        if fields.get(key):
            return fields[key]
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if implementer and part:
        return _ARM_PARTS.get((implementer, part), f"Arm {implementer} {part}")
    return platform.machine() or "machine"


def _cpuinfo(root: Path) -> Mapping[str, str]:
    """The first value of every key in /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields
