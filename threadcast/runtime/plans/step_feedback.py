"""Gives what looks have shown of operators back to the store, and to a service, by a process of its own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import IO

from threadcast.core import Machine, Op, OpGraph
from threadcast.core.measurement_documents import batch_document
from threadcast.runtime.plans.step_rows import Observed, measurements
from threadcast.scheduler.planner_process import to_lowest_priority
from threadcast.threads.openmp import child_environment

_logger = logging.getLogger("threadcast")


class StepFeedback:
    """Stores times of operators on `machine`, which looks at steps of one model have shown, at the URL `store`.

    A process of the lowest priority does that; it also sends them to the service that the setting `engine.feedback`
    names. Nothing that fails there disturbs a step; the first failure is logged as a warning.
    """

    def __init__(self, store: str, machine: Machine) -> None:
        self._store, self._machine = store, machine
        self._process: subprocess.Popen[bytes] | None = None
        self._warned = False

    @property
    def working(self) -> bool:
        """Whether the process is still at work: what is added now would end it."""
        return self._process is not None and self._process.poll() is None

    def add_looks(self, looks: Iterable[tuple[OpGraph, Mapping[str, Observed]]]) -> None:
        """Take what looks have shown of the ops of graphs, by key; they run alone in looks.

        Not while it is `working`.
        """
        self.close()
        found: dict[str, tuple[Op, Observed]] = {}
        for graph, observed in looks:
            found |= {op.key: (op, observed[op.key]) for op in graph.ops if op.key in observed}
        rows = [row for op, of_op in found.values() for row in measurements(op, self._machine, of_op)]
        if not rows:  # a plan from forecasts alone takes no look
            return
        try:
            self._process = _started(self._store, json.dumps(batch_document(rows)).encode())
        except OSError as error:
            self._warn(str(error))

    def close(self) -> None:
        """End the process; warn where it has failed."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll():
            self._warn(_last_line(process.stderr))
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning("times of operators are not stored (engine.feedback): %s", reason)


def _started(store: str, document: bytes) -> subprocess.Popen[bytes]:
    """Start the process that adds a document to the store."""
    command = [sys.executable, "-P", "-m", "threadcast.runtime.plans.service_feedback", store]
    with tempfile.TemporaryFile() as given:
        given.write(document)
        given.seek(0)
        process = subprocess.Popen(
            command, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=child_environment(),
            process_group=0,  # Ctrl-C is for the caller
        )  # fmt: skip
    to_lowest_priority(process.pid)
    return process


def _last_line(stream: IO[bytes] | None) -> str:
    lines = b"" if stream is None else stream.read()
    return (lines.decode(errors="replace").strip().splitlines() or ["it failed"])[-1]
