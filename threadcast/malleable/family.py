"""Reads a process's state, family and ancestors from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The status of a process at one moment; see proc_pid_stat(5).

    `state` is the kernel's letter: R is runnable, S and D wait, T and t are stopped, Z and X have ended. `parent` is
    the number of its parent. `cpu_s` is the CPU time in seconds of all its threads, and of the children that it has
    waited for. `began` is when it began, in the kernel's ticks: numbers of processes are used again.
    """

    state: str
    parent: int
    cpu_s: float
    began: int


def process_status(process: int) -> ProcessStatus | None:
    """Return the current status of the process with this number; None where there is no such process."""
    try:
        _, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")  # its name may hold anything
    except (OSError, UnicodeDecodeError):
        return None
    fields = rest.split()
    return ProcessStatus(fields[0], int(fields[1]), sum(map(int, fields[11:15])) * _TICK_S, int(fields[19]))


def thread_times(process: int) -> dict[int, tuple[float, float]]:
    """Return how long each thread of a process has run, and has waited for a CPU, in seconds since it began.

    Empty where there is no such process, or the kernel does not count it (proc_pid_schedstat).
    """
    found = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError, ValueError):
                run_ns, wait_ns, _ = Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split()
                found[int(thread)] = int(run_ns) * 1e-9, int(wait_ns) * 1e-9
    return found


def descendants(process: int, *, without: Callable[[int], bool] = lambda _: False) -> list[int]:
    """Return the children of a process, their children, and so on, leaving out those for which `without` is true.

    The descendants of a process that is left out are left out, too.
    """
    found: list[int] = []
    for child in _children(process):
        if not without(child):
            found += [child, *descendants(child, without=without)]
    return found


class Family:
    """A process, its descendants, and those that have left them for another parent (daemons).

    Who has left is known by `mark`, which the environment of a descendant holds, or because it was a descendant before.
    """

    def __init__(self, process: int, mark: bytes) -> None:
        self._process, self._mark = process, mark
        self._known: dict[int, int] = {}
        """When each one that was found began, by number."""
        self._seen: Collection[int] = ()

    def look(self, *, without: Callable[[int], bool] = lambda _: False) -> dict[int, ProcessStatus]:
        """Return the status of each one that has not been waited for, by number.

        Those for which `without` is true are left out, with their descendants.
        """
        seen, left, found = {int(name) for name in os.listdir("/proc") if name.isdecimal()}, set[int](), {}
        marked = [one for one in seen.difference(self._seen) if self._mark in _environment(one)]

        def leaves(one: int) -> bool:
            if without(one):
                left.update((one, *descendants(one)))
            return one in left

        for root in dict.fromkeys((self._process, *self._known, *marked)):
            if root not in found and not leaves(root):
                for one in (root, *descendants(root, without=leaves)):
                    status = process_status(one)
                    if status is not None and self._known.get(one, status.began) == status.began:
                        found[one] = status
        self._seen = seen
        self._known = {one: status.began for one, status in found.items() if one not in left}
        return {one: found[one] for one in self._known}


def ancestors(process: int) -> Iterator[int]:
    """Yield the parent of a process, the parent's parent, and so on."""
    while (status := process_status(process)) is not None and status.parent > 0:
        process = status.parent
        yield process


def _environment(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:  # it ends
        pass
    return found
