"""Reads a process's state, descendants and ancestors from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The status of a process at one moment; see proc_pid_stat(5).

    `state` is the kernel's letter: R is runnable, S and D wait, T and t are stopped, Z and X have ended. `parent` is
    the number of its parent. `cpu_s` is the CPU time of all its threads in seconds.
    """

    state: str
    parent: int
    cpu_s: float


def process_status(process: int) -> ProcessStatus | None:
    """Return the current status of the process with this number; None where there is no such process."""
    try:
        _, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")  # its name may hold anything
    except (OSError, UnicodeDecodeError):
        return None
    fields = rest.split()
    return ProcessStatus(fields[0], int(fields[1]), (int(fields[11]) + int(fields[12])) * _TICK_S)


def descendants(process: int, *, without: Callable[[int], bool] = lambda _: False) -> list[int]:
    """Return the children of a process, their children, and so on, leaving out those for which `without` is true.

    The descendants of a process that is left out are left out, too.
    """
    found: list[int] = []
    for child in _children(process):
        if not without(child):
            found += [child, *descendants(child, without=without)]
    return found


def ancestors(process: int) -> Iterator[int]:
    """Yield the parent of a process, the parent's parent, and so on."""
    while (status := process_status(process)) is not None and status.parent > 0:
        process = status.parent
        yield process


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:  # it ends
        pass
    return found
