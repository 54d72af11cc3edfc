"""How much of the machine other processes used while something was measured, and waiting until they use little."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

QUIET = 0.1
"""Part of all cores' time that others may use while something is measured."""

LOOK_S = 3.0
"""Seconds over which others' work is looked at before measuring begins."""


def wait_until_quiet(most_s: float) -> bool:
    """Wait until others use less than `QUIET`, for `most_s` seconds at most; return whether they do."""
    end_s = time.monotonic() + most_s
    while True:
        others = OtherWork(())
        time.sleep(LOOK_S)
        if others.share() <= QUIET:
            return True
        if time.monotonic() >= end_s:
            return False


def processes_of(session: int) -> list[int]:
    """Return the ids of the processes of a session, whatever process groups they are in."""
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if (_stat(process) or [0] * 4)[3] == session]


def children_of(parent: int) -> list[int]:
    """Return the ids of the processes that this one has started and that have not ended."""
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if (_stat(process) or [0] * 4)[1] == parent]


def _stat(process: Path) -> list[int] | None:
    """The numbers of /proc/PID/stat from the state on (as 0); None where the process has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return [0, *map(int, fields[1:])]


class OtherWork:
    """The CPU time that processes outside of some sessions use, from when this object is made.

    This process and its children are never others. What a child started, and has seen ending, counts as the child's.

    Source: /proc/stat and /proc/PID/stat (proc(5)), in clock ticks of 10 ms.
    """

    def __init__(self, sessions: Collection[int], proc: Path = Path("/proc")) -> None:
        self._sessions, self._proc = set(sessions), proc
        self._before = self._ticks()

    def is_own(self, session: int) -> None:
        """Do not count the processes of one more session, which began after this object was made."""
        self._sessions.add(session)

    def share(self) -> float:
        """Part of all cores' time that others used since; near 0 on a quiet machine, 1 where they used all cores."""
        others, everything = (now - before for now, before in zip(self._ticks(), self._before, strict=True))
        return max(0.0, others / everything) if everything > 0 else 0.0

    def _ticks(self) -> tuple[int, int]:
        """Ticks that others have worked, and all ticks of all cores, since the machine started."""
        fields = [int(field) for field in (self._proc / "stat").read_text().splitlines()[0].split()[1:9]]
        idle = fields[3] + fields[4]
        return sum(fields) - idle - sum(map(self._own, self._proc.glob("[0-9]*"))), sum(fields)

    def _own(self, process: Path) -> int:
        """Ticks of a process, and of its children that have ended, if it belongs to the sessions."""
        fields = _stat(process)
        if fields is None:
            return 0
        own = fields[3] in self._sessions or os.getpid() in (int(process.name), fields[1])
        return sum(fields[11:15]) if own else 0
