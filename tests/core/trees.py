"""Builds the parts of /proc and /sys that threadcast reads, for machines that tests do not run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from threadcast.core.sysfs import format_cpus


@dataclass(frozen=True)
class FakeCore:
    """A core by its hardware threads; `core_id` counts within the socket, as the kernel's does."""

    cpus: tuple[int, ...]
    core_id: int
    socket: int = 0
    node: int = 0
    max_khz: int | None = None
    capacity: int | None = None


@dataclass(frozen=True)
class FakeCache:
    level: int
    kind: str
    size: str
    cpus: tuple[int, ...]


def put(root: Path, path: str, text: object) -> Path:
    """Write one file of the tree."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
    return file


def machine(
    root: Path, cores: Sequence[FakeCore], caches: Sequence[FakeCache], cpuinfo: str, offline: Iterable[int] = ()
) -> frozenset[int]:
    """Write a machine and return its online CPUs. As the kernel does, offline ones keep no topology."""
    gone = frozenset(offline)
    every = frozenset(cpu for core in cores for cpu in core.cpus)
    put(root, "sys/devices/system/cpu/online", format_cpus(every - gone))
    put(root, "proc/cpuinfo", cpuinfo)
    for core in cores:
        present = frozenset(core.cpus) - gone
        for cpu in core.cpus:
            base = f"sys/devices/system/cpu/cpu{cpu}"
            put(root, f"{base}/online", int(cpu not in gone))
            if cpu in gone:
                continue
            put(root, f"{base}/topology/core_id", core.core_id)
            put(root, f"{base}/topology/physical_package_id", core.socket)
            put(root, f"{base}/topology/die_id", 0)
            put(root, f"{base}/topology/thread_siblings_list", format_cpus(present))
            if core.max_khz is not None:
                put(root, f"{base}/cpufreq/cpuinfo_max_freq", core.max_khz)
            if core.capacity is not None:
                put(root, f"{base}/cpu_capacity", core.capacity)
            for i, cache in enumerate(cache for cache in caches if cpu in cache.cpus):
                index = f"{base}/cache/index{i}"
                put(root, f"{index}/level", cache.level)
                put(root, f"{index}/type", cache.kind)
                put(root, f"{index}/size", cache.size)
                put(root, f"{index}/shared_cpu_list", format_cpus(frozenset(cache.cpus) - gone))
    for node in {core.node for core in cores}:
        own = frozenset(cpu for core in cores if core.node == node for cpu in core.cpus)
        put(root, f"sys/devices/system/node/node{node}/cpulist", format_cpus(own - gone))
    return every - gone


def private_caches(cores: Sequence[FakeCore], *, l1: str, l2: str | None) -> list[FakeCache]:
    """A first level for data and one for instructions, and a second level where `l2` is given, for every core."""
    made = []
    for core in cores:
        made += [FakeCache(1, "Data", l1, core.cpus), FakeCache(1, "Instruction", "32K", core.cpus)]
        made += [FakeCache(2, "Unified", l2, core.cpus)] if l2 else []
    return made


def shared_caches(cores: Sequence[FakeCore], group: int, *, level: int, size: str) -> list[FakeCache]:
    """One cache for every `group` cores."""
    return [
        FakeCache(level, "Unified", size, tuple(cpu for core in cores[i : i + group] for cpu in core.cpus))
        for i in range(0, len(cores), group)
    ]


def x86(name: str) -> str:
    return f"processor\t: 0\nvendor_id\t: Any\nmodel name\t: {name}\nflags\t\t: fpu sse"


def xeon_phi_7250(root: Path, **options: Iterable[int]) -> frozenset[int]:
    """68 cores of four hardware threads on 34 tiles of two that share 1 MiB of L2; no L3; memory-only node 1."""
    cores = [FakeCore(tuple(i + 68 * t for t in range(4)), i, max_khz=1_600_000) for i in range(68)]
    caches = private_caches(cores, l1="32K", l2=None) + shared_caches(cores, 2, level=2, size="1024K")
    put(root, "sys/devices/system/node/node1/cpulist", "")
    return machine(root, cores, caches, x86("Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz"), **options)


def epyc_two_sockets(root: Path, *, per_socket: int = 64, **options: Iterable[int]) -> frozenset[int]:
    """Two EPYC 7763: 2 x 64 cores x 2 threads, CCDs of eight cores that share 32 MiB of L3, a NUMA node a socket."""
    count = 2 * per_socket
    cores = [
        FakeCore((i, i + count), i % per_socket, socket=i // per_socket, node=i // per_socket, max_khz=3_529_052)
        for i in range(count)
    ]
    caches = private_caches(cores, l1="32K", l2="512K") + shared_caches(cores, 8, level=3, size="32768K")
    return machine(root, cores, caches, x86("AMD EPYC 7763 64-Core Processor"), **options)


def hybrid_laptop(root: Path, *, capacities: bool = False, **options: Iterable[int]) -> frozenset[int]:
    """Core i7-1280P: 6 P cores of two threads, 8 E cores in clusters of four that share L2, one L3.

    The E cores come first in the kernel's numbering here, so that order by number is not order by speed; one P core
    is a favoured one.
    """
    small = [FakeCore((i,), i, max_khz=3_600_000, capacity=631 if capacities else None) for i in range(8)]
    big = [
        FakeCore((8 + 2 * i, 9 + 2 * i), 8 + i, max_khz=4_800_000 if i == 3 else 4_700_000,
                 capacity=1024 if capacities else None)
        for i in range(6)
    ]  # fmt: skip
    caches = private_caches(small, l1="32K", l2=None) + shared_caches(small, 4, level=2, size="2048K")
    caches += private_caches(big, l1="48K", l2="1280K") + shared_caches([*small, *big], 14, level=3, size="24576K")
    return machine(root, [*small, *big], caches, x86("12th Gen Intel(R) Core(TM) i7-1280P"), **options)


def graviton3(root: Path, **options: Iterable[int]) -> frozenset[int]:
    """64 Arm cores without SMT, private L2, one L3 for all."""
    cores = [FakeCore((i,), i, capacity=1024) for i in range(64)]
    caches = private_caches(cores, l1="64K", l2="1024K") + shared_caches(cores, 64, level=3, size="32768K")
    cpuinfo = "processor\t: 0\nBogoMIPS\t: 2100.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nCPU revision\t: 1"
    return machine(root, cores, caches, cpuinfo, **options)


def plain(root: Path, cores: int) -> frozenset[int]:
    """Equal cores without SMT that share one L3."""
    made = [FakeCore((i,), i) for i in range(cores)]
    caches = private_caches(made, l1="32K", l2="512K") + shared_caches(made, cores, level=3, size="16384K")
    return machine(root, made, caches, x86("Plain CPU"))


def cgroup_v2(
    root: Path, own: str, files: Mapping[str, object], *, shown: str = "/", point: str = "/sys/fs/cgroup"
) -> None:
    """A version 2 hierarchy: /proc/self/cgroup says `own`, the mount at `point` shows the group `shown`.

    `files` are paths below the mount point with their content.
    """
    put(root, "proc/self/cgroup", f"0::{own}")
    escaped = point.replace(" ", r"\040")
    put(root, "proc/self/mountinfo", f"30 23 0:26 {shown} {escaped} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate")
    for path, text in files.items():
        put(root, f"{point}/{path}", text)


def cgroup_v1(
    root: Path, own: str, files: Mapping[str, object], *, shown: str = "/", controllers: str = "cpu,cpuacct"
) -> None:
    """Version 1 hierarchies for cpu and cpuset; `files` are paths below /sys/fs/cgroup."""
    put(root, "proc/self/cgroup", f"4:memory:{own}\n3:cpuset:{own}\n2:{controllers}:{own}\n1:name=systemd:/\n0::/")
    lines = [
        f"{40 + i} 31 0:{30 + i} {shown} /sys/fs/cgroup/{name} rw,relatime shared:{i} - cgroup cgroup rw,{name}"
        for i, name in enumerate((controllers, "cpuset", "memory"))
    ]
    put(root, "proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n" + "\n".join(lines))
    for path, text in files.items():
        put(root, f"sys/fs/cgroup/{path}", text)
