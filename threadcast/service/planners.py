"""Planning in processes of their own: what takes too long is ended with its process, and nothing else waits for it.

Threads could not be stopped: solvers compute for seconds outside of the interpreter, or hold its lock.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from threadcast.core import Plan
from threadcast.core.errors import FormatError
from threadcast.scheduler.policies import Problem as PlanProblem
from threadcast.service.deadlines import Deadline, too_late
from threadcast.service.plan_message import LENGTH_BYTES, framed, question

READ_BYTES = 1 << 20


class Planner:
    """One planning process."""

    def __init__(self) -> None:
        # -P: nothing is imported from the directory that the service happens to be started in
        command = [sys.executable, "-P", "-m", "threadcast.service.planner_process"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out, self._into = self._process.stdin.fileno(), self._process.stdout.fileno()
        for descriptor in (self._out, self._into):
            os.set_blocking(descriptor, False)

    def ask(self, message: bytes, *, until_s: float) -> bytes | None:
        """The answer; None where there is none by then (`time.monotonic`). OSError where the process has ended."""
        out, into = self._out, self._into
        left, arrived = memoryview(framed(message)), bytearray()
        with selectors.DefaultSelector() as streams:
            streams.register(out, selectors.EVENT_WRITE)
            streams.register(into, selectors.EVENT_READ)
            while True:
                for key, _ in streams.select(max(until_s - time.monotonic(), 0.0)):
                    if key.fd == out:
                        left = left[os.write(out, left) :]
                        if not left:
                            streams.unregister(out)
                    elif data := os.read(into, READ_BYTES):
                        arrived += data
                    else:
                        raise ChildProcessError("the planning process has ended")
                whole = LENGTH_BYTES + int.from_bytes(arrived[:LENGTH_BYTES], "big")
                if len(arrived) >= LENGTH_BYTES and len(arrived) == whole:
                    return bytes(arrived[LENGTH_BYTES:])
                if time.monotonic() >= until_s:
                    return None

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


class Planners:
    """The planning processes of this process, started when there is something to plan. Safe to use from threads."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._idle: list[Planner] = []
        self._busy: set[Planner] = set()

    def plan(
        self, problem: PlanProblem, policy: str, options: Mapping[str, Any], until: Deadline, *, most: int
    ) -> Plan:
        """The plan, by one of at most `most` processes; a problem as soon as time is up.

        FormatError for options that the policy does not take.
        """
        message = question(problem, policy, options)
        try:
            content = self._ask(message, until, most)
        except OSError:  # it may have ended while it was idle
            content = self._ask(message, until, most)
        if content is None:
            raise too_late(until.limit_s)
        answer = json.loads(content)
        if "refused" in answer:
            raise FormatError(answer["refused"], pointer="/options" if options else "/policy")
        return Plan.from_json(answer["plan"])

    def close(self) -> None:
        """End all processes; the next plan starts one anew."""
        with self._free:
            ending, self._idle = [*self._idle, *self._busy], []
        for planner in ending:
            planner.end()

    def _ask(self, message: bytes, until: Deadline, most: int) -> bytes | None:
        planner, kept = self._take(until, most), False
        try:
            content = planner.ask(message, until_s=time.monotonic() + until.remaining_s())
            kept = content is not None
        finally:
            self._give_back(planner, kept=kept)
        return content

    def _take(self, until: Deadline, most: int) -> Planner:
        with self._free:
            while not self._idle and len(self._busy) >= most:
                self._free.wait(until.remaining_s())
            planner = self._idle.pop() if self._idle else Planner()
            self._busy.add(planner)
            return planner

    def _give_back(self, planner: Planner, *, kept: bool) -> None:
        if not kept:
            planner.end()
        with self._free:
            self._busy.discard(planner)
            if kept:
                self._idle.append(planner)
            self._free.notify()


_planners = Planners()
atexit.register(_planners.close)
plan, close = _planners.plan, _planners.close
