"""Gives operator times of settled steps back to the store: one traced step a minute, however many calls there are."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import IO

from threadcast.core import Affinity, Case, Machine, Op, OpGraph, Placement, Trace
from threadcast.core.measurement_documents import batch_document
from threadcast.runtime.plans.step_rows import Observed, measurements
from threadcast.scheduler.planner_process import to_lowest_priority
from threadcast.threads.openmp import child_environment

SUMMARY_S = 60.0
"""Seconds between two traced steps."""
CHANGED = 1.25
"""Factor by which the median operator must take longer or shorter than was stored, in two traced steps in a row, so
that its times are stored again. From this factor on a plan's steps count as slower than at first, too."""
_BESIDE = 0.02
"""Share of its time for which an operator may run beside others and still count as run alone."""

_logger = logging.getLogger("threadcast")


class StepFeedback:
    """Summaries of the steps that run by settled plans of one model on `machine`, for the store at the URL `store`.

    Run a traced step whenever `due`, and `add` its trace. Of its operators those that ran alone are stored, which is
    what curves are about: the first time, and when they have changed. A process of the lowest priority does that; it
    also sends them to the service that the setting `engine.feedback` names. Nothing that fails there disturbs a step;
    the first failure is logged as a warning. `start` starts the process.
    """

    def __init__(
        self, store: str, machine: Machine, *, clock: Callable[[], float] = time.monotonic,
        start: Callable[[str, bytes], subprocess.Popen[bytes]] | None = None,
    ) -> None:  # fmt: skip
        self._store, self._machine, self._clock, self._start = store, machine, clock, start or _started
        self._next_s = clock() + SUMMARY_S
        self._stored: dict[tuple[str, Case], float] = {}
        """Median seconds that were stored, by op key and case."""
        self._changed = False
        """Whether operators had changed at the last traced step."""
        self._process: subprocess.Popen[bytes] | None = None
        self._warned = False

    @property
    def working(self) -> bool:
        """Whether the process is still at work: what is added now would end it."""
        return self._process is not None and self._process.poll() is None

    def due(self) -> bool:
        """Return whether the next step should be traced."""
        return self._clock() >= self._next_s

    def add(self, graph: OpGraph, trace: Trace) -> None:
        """Take the times of a traced step of `graph` on this machine; returns after some milliseconds."""
        self._next_s = self._clock() + SUMMARY_S
        self._look_at_process()
        times = _alone(graph, trace, self._machine)
        new = {key: seconds for key, seconds in times.items() if key not in self._stored}
        ratios = [median(seconds) / self._stored[key] for key, seconds in times.items() if key in self._stored]
        changed = bool(ratios) and not 1 / CHANGED <= median(ratios) <= CHANGED
        if changed and self._changed:
            new = times
        self._changed = changed
        if new:
            self._write({op.key: op for op in graph.ops}, new)

    def add_looks(self, looks: Iterable[tuple[OpGraph, Mapping[str, Observed]]]) -> None:
        """Take what looks have shown of the ops of graphs, by key; they run alone in looks."""
        self._look_at_process()
        ops: dict[str, Op] = {}
        times: dict[tuple[str, Case], Sequence[float]] = {}
        for graph, observed in looks:
            ops |= {op.key: op for op in graph.ops}
            times |= {(key, case): taken for key, cases in observed.items() for case, taken in cases.items()}
        if times:  # a plan from forecasts alone takes no look
            self._write(ops, times)

    def close(self) -> None:
        """End the process. A later `add` starts another one."""
        if self._process is not None:
            self._end(self._process)
            self._process = None

    def _write(self, ops: Mapping[str, Op], times: Mapping[tuple[str, Case], Sequence[float]]) -> None:
        rows = []
        for (key, case), seconds in times.items():
            rows += measurements(ops[key], self._machine, {case: seconds})
        self.close()
        self._next_s = self._clock() + SUMMARY_S  # the process gets as long
        try:
            self._process = self._start(self._store, json.dumps(batch_document(rows)).encode())
        except OSError as error:
            self._warn(str(error))
            return
        self._stored |= {key: median(seconds) for key, seconds in times.items()}

    def _look_at_process(self) -> None:
        """Warn where the last process has failed, or has not come to an end since the last summary."""
        if self._process is None:
            return
        status = self._process.poll()
        if status:
            self._warn(_last_line(self._process.stderr))
        elif status is None:
            self._warn(f"it took more than {SUMMARY_S:g} s")
        self.close()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning("operator times of steps are not stored (engine.feedback): %s", reason)


def _alone(graph: OpGraph, trace: Trace, machine: Machine) -> dict[tuple[str, Case], list[float]]:
    """Seconds of the operators that ran alone, by op key and case."""
    found: dict[tuple[str, Case], list[float]] = {}
    ops = dict(zip(graph.ids, graph.ops, strict=True))
    placed = trace.ops  # in order of start
    latest_s = 0.0
    for i, one in enumerate(placed):
        next_s = placed[i + 1].start_s if i + 1 < len(placed) else one.finish_s
        beside_s = max(0.0, latest_s - one.start_s) + max(0.0, one.finish_s - next_s)
        latest_s = max(latest_s, one.finish_s)
        case = _case(one, machine)
        if case is not None and one.duration_s > 0 and beside_s <= _BESIDE * one.duration_s:
            found.setdefault((ops[one.id].key, case), []).append(one.duration_s)
    return found


def _case(placement: Placement, machine: Machine) -> Case | None:
    """The case in which an op ran; None for one that is not among the machine's, such as one on hardware threads."""
    if placement.threads != len(placement.cores) or placement.hardware_thread:
        return None
    groups = {core.group for core in machine.cores if core.id in placement.cores}
    spread = len(groups) == placement.threads
    cases = [case for case in machine.cases() if case.threads == placement.threads]
    fitting = [case for case in cases if (case.affinity is Affinity.SPREAD) == spread]
    return next(iter(fitting or cases), None)


def _started(store: str, document: bytes) -> subprocess.Popen[bytes]:
    """Start the process that adds a document to the store."""
    command = [sys.executable, "-P", "-m", "threadcast.runtime.plans.rows_process", store]
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
