"""The limits that control groups, version 1 and 2, set on a process's CPUs: quota and cpuset.

A limit may be set on the process's own group or on any group above it, so all of them are read, up to the top of what
is mounted. Inside a container the path in /proc/self/cgroup may be the host's and not exist under the mount; then the
mount's own top directory is the container's group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from threadcast.core.sysfs import read_cpus, read_int, read_text


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy. `controllers` is empty for version 2; `top` is the group that is mounted at `point`."""

    controllers: frozenset[str]
    top: PurePosixPath
    point: Path


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The limits that control groups set on a process's CPUs.

    `quota` is the CPU time that the process may use, in CPUs (1.5 is one and a half); the smallest quota of its groups,
    None without one. `cpuset` are the kernel's numbers of the CPUs that all its groups allow; None where no group sets
    them.
    """

    quota: float | None
    cpuset: frozenset[int] | None


def read_cgroup_limits(root: Path = Path("/"), *, process: str = "self") -> CgroupLimits:
    """The limits of a process, by its number or the calling one, from /proc and /sys below `root`.

    A limit is None where these files set none.
    """
    texts = _texts(root, process)
    return CgroupLimits(_quota(_groups_of(root, "cpu", *texts)), _cpuset(_groups_of(root, "cpuset", *texts)))


def read_throttling(root: Path = Path("/"), *, process: str = "self") -> tuple[int, int]:
    """How many periods there were in which the quotas of a process's groups counted, and in how many one stopped it."""
    periods = stopped = 0
    for group in _groups_of(root, "cpu", *_texts(root, process)):
        words = (read_text(f"{group}/cpu.stat") or "").split()
        counts = {name: int(count) for name, count in zip(words[::2], words[1::2]) if count.isdecimal()}
        periods, stopped = periods + counts.get("nr_periods", 0), stopped + counts.get("nr_throttled", 0)
    return periods, stopped


def _quota(groups: Iterable[Path]) -> float | None:
    found = [quota for group in groups for quota in (_quota_v1(group), _quota_v2(group)) if quota]
    return min(found, default=None)


def _cpuset(groups: Iterable[Path]) -> frozenset[int] | None:
    allowed: frozenset[int] | None = None
    for group in groups:
        names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
        cpus = next((cpus for name in names if (cpus := read_cpus(f"{group}/{name}"))), None)
        if cpus:
            allowed = cpus if allowed is None else allowed & cpus
    return allowed or None


def _quota_v1(group: Path) -> float | None:
    return _ratio(read_int(f"{group}/cpu.cfs_quota_us"), read_int(f"{group}/cpu.cfs_period_us"))


def _quota_v2(group: Path) -> float | None:
    match = re.fullmatch(r"(\d+)(?:\s+(\d+))?", read_text(f"{group}/cpu.max") or "")  # "max 100000": no quota
    return _ratio(int(match[1]), int(match[2] or 100_000)) if match else None


def _ratio(quota_us: int | None, period_us: int | None) -> float | None:
    if quota_us is None or period_us is None or quota_us <= 0 or period_us <= 0:  # -1: no quota
        return None
    ratio = quota_us / period_us
    return ratio if math.isfinite(ratio) else None


def _texts(root: Path, process: str) -> tuple[str, str]:
    """The texts of two kernel files: which groups the process is in, and where groups are mounted."""
    return read_text(f"{root}/proc/{process}/cgroup") or "", read_text(f"{root}/proc/self/mountinfo") or ""


@lru_cache(maxsize=16)
def _groups_of(root: Path, controller: str, membership_text: str, mounts_text: str) -> tuple[Path, ...]:
    """Directories of the process's group and of all visible groups above it, in every hierarchy with `controller`."""
    return tuple(_found(controller, _membership(membership_text), _mounts(root, mounts_text)))


def _found(controller: str, membership: Mapping[str, PurePosixPath], mounts: Sequence[_Mount]) -> Iterator[Path]:
    for mount in mounts:
        if mount.controllers and controller not in mount.controllers:
            continue
        own = membership.get(controller if mount.controllers else "", PurePosixPath("/"))
        try:
            below = own.relative_to(mount.top)
        except ValueError:  # another namespace's path
            below = PurePosixPath()
        if ".." in below.parts:
            below = PurePosixPath()
        yield mount.point / below
        yield from (mount.point / parent for parent in below.parents)


def _membership(text: str) -> dict[str, PurePosixPath]:
    """The process's group by controller; "" is version 2."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found.update(dict.fromkeys(controllers.split(","), PurePosixPath(path)))
    return found


def _mounts(root: Path, text: str) -> list[_Mount]:
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")  # see proc_pid_mountinfo(5)
        place, kind = before.split(" "), after.split(" ")
        if len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset()
        mounts.append(_Mount(controllers, PurePosixPath(_unescape(place[3])), _under(root, _unescape(place[4]))))
    return mounts or _usual_mounts(root)


def _usual_mounts(root: Path) -> list[_Mount]:
    base, top = root / "sys/fs/cgroup", PurePosixPath("/")
    v1 = [_Mount(frozenset({name}), top, base / name) for name in ("cpu", "cpuset")]
    return [*v1, _Mount(frozenset(), top, base / "unified"), _Mount(frozenset(), top, base)]


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _under(root: Path, absolute: str) -> Path:
    return root / absolute.lstrip("/")
