"""Compiles the planner's loops in a process beside the service, so that no request has to wait for all of that.

After an install or an upgrade this takes many seconds. Later starts find the machine code on disk.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadcast.scheduler import compile_planner
from threadcast.service.deadlines import Deadline
from threadcast.service.problems import Problem
from threadcast.threads.openmp import child_environment

RETRY_S = 5
"""Seconds after which a client is asked to try again."""

NICE = 10
"""Nice value of the process (nice(2)): answering requests goes first."""


class PlannerCompilation:
    """The process that compiles, if there is one. Worker processes that are forked while it runs can wait for it."""

    def __init__(self) -> None:
        self._process: int | None = None
        """File descriptor of the process (pidfd_open(2)): readable once the process has ended, in whatever way."""

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Start the process, and end it with the block if it still runs then."""
        parent = os.getpid()
        command = [sys.executable, "-P", "-m", compile_planner.__name__, str(parent), str(NICE)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=child_environment())
        self._process = os.pidfd_open(process.pid)
        try:
            yield
        finally:
            if os.getpid() == parent:  # workers are forked within the block
                process.terminate()
                process.wait()
                os.close(self._process)
                self._process = None

    @property
    def is_running(self) -> bool:
        """Whether the planner is still being compiled."""
        return not self._ends_within(0.0)

    def wait(self, until: Deadline) -> None:
        """Wait until the planner is compiled; raise a Problem of status 503 where it is not in time."""
        if not self._ends_within(until.remaining_s()):
            raise Problem(
                503,
                "the planner is being compiled, which is done once after an install or an upgrade, "
                f"and was not ready within {until.limit_s:g} s; ask again",
                headers={"Retry-After": str(RETRY_S)},
            )

    def _ends_within(self, seconds: float) -> bool:
        if self._process is None:
            return True
        ended = select.poll()
        ended.register(self._process, select.POLLIN)
        return bool(ended.poll(seconds * 1e3))
