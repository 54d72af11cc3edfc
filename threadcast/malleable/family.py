"""A process and what it has started: which processes these are, how much CPU time they take, and whether they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Seen:
    """`state` is the kernel's letter: R runs or could, S and D wait, T and t are stopped (proc_pid_stat(5))."""

    state: str
    parent: int
    cpu_s: float


def seen(process: int) -> Seen | None:
    """A process at this moment, with the CPU time of all its threads; None where there is none."""
    try:
        _, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")  # its name may hold anything
    except (OSError, UnicodeDecodeError):
        return None
    fields = rest.split()
    return Seen(fields[0], int(fields[1]), (int(fields[11]) + int(fields[12])) * _TICK_S)


def descendants(process: int, *, without: Callable[[int], bool] = lambda _: False) -> list[int]:
    """The children of a process, their children, and so on, but for those that are `without` and all these started."""
    found: list[int] = []
    for child in _children(process):
        if not without(child):
            found += [child, *descendants(child, without=without)]
    return found


def ancestors(process: int) -> Iterator[int]:
    """The parent of a process, its parent, and so on."""
    while (look := seen(process)) is not None and look.parent > 0:
        process = look.parent
        yield process


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:  # it ends
        pass
    return found
