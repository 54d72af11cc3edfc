"""The processes of a session, stopped and going on together."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from warmup_others import processes_of


class Session:
    """All processes of the session that the process `leader` leads, whatever process groups they are in."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self._stopped: set[int] = set()

    def stop(self) -> None:
        """Stop all that run. What the session has stopped by itself, as a search that rests, is not resumed later."""
        running = {process for process in processes_of(self.leader) if not _is_stopped(process)}
        self._send(signal.SIGSTOP, running)
        self._stopped |= running

    def go_on(self) -> None:
        """Let those go on that `stop` stopped."""
        self._send(signal.SIGCONT, self._stopped)
        self._stopped.clear()

    def kill(self) -> None:
        """End all of them."""
        self._send(signal.SIGKILL, set(processes_of(self.leader)))

    @staticmethod
    def _send(number: signal.Signals, processes: set[int]) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def _is_stopped(process: int) -> bool:
    """Whether a process is stopped by a signal; source: /proc/PID/stat, proc(5)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended
        return True
