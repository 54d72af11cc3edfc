"""Makes plans in another process, which can be ended at any moment and has its own memory.

A thread could not be ended: the search computes for seconds outside of the interpreter. The planner's libraries
(Numba's compiler) take much memory and some seconds to start, so one process makes many plans. Until it is first asked
it loads them, so that a process that was started early answers quickly.

`PlannerProcess` is the caller's end; this module, run as a script, is the other end. Problem and plan are passed in an
in-memory file that both have open. A byte on the script's standard input means that there is a problem, a byte on its
standard output that there is an answer. The script ends when its standard input is closed, or when the process that
started it ends.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from threadcast.core import Edge, Machine, Op, OpGraph, Plan
from threadcast.core.curve_codec import from_codes, to_codes
from threadcast.core.errors import ExecutionError, InvalidInput
from threadcast.core.parent_process import end_with_parent
from threadcast.scheduler.policies import Problem
from threadcast.threads.openmp import child_environment

_NICEST = 19
"""Lowest priority of a process (nice(2))."""


_PYTHON = {"NUMBA_DISABLE_JIT": "1"}
"""Variables of a process whose loops run as Python; `kernels.compiled` reads them."""


class PlannerEnded(ExecutionError):
    """The planner's process ended without an answer, for example by a signal or because memory ran out."""


class PlannerProcess:
    """A process that makes one plan at a time. Use it from one thread at a time, and `close` it in the end.

    The process ends when the thread that created it ends, so create it in a thread that lives long enough.
    `background`: the process has the lowest priority, and uses CPU time that no other process wants. `cpus` are the
    numbers of the only CPUs that it runs on, None for all. `stderr` is where
    its messages go: `subprocess.DEVNULL`, or None for the caller's own standard error. Without `compiles` the planner's
    loops run as Python, about 100 times slower, but at once: compiling them takes 20 s of a core.

    A process that is started some seconds before the first `ask` has loaded its libraries by then. One that is asked at
    once loads what that plan needs.
    """

    module = __name__
    """The module that the process runs as a script. A subclass names its own, which calls `serve`."""

    def __init__(
        self, *, background: bool = False, cpus: Collection[int] | None = None,
        stderr: int | None = subprocess.DEVNULL, compiles: bool = True,
    ) -> None:  # fmt: skip
        self.compiles = compiles
        """Whether the planner's loops are compiled in the process."""
        self._message = os.memfd_create("threadcast-plan")
        # -P: nothing is imported from the directory that the caller happens to be in
        command = [sys.executable, "-P", "-m", self.module, str(self._message), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, pass_fds=[self._message],
                env=child_environment(**({} if compiles else _PYTHON)),
                process_group=0,  # Ctrl-C is for the caller
            )  # fmt: skip
        except BaseException:
            os.close(self._message)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        if background:
            to_lowest_priority(self._process.pid)
        if cpus is not None:
            with suppress(OSError):  # the process has ended, as `result` says, or the CPUs were taken away
                os.sched_setaffinity(self._process.pid, cpus)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(self, problem: Problem, *, policy: str = "auto", options: Mapping[str, Any] | None = None) -> None:
        """Start making the plan of `planner.plan(problem, policy=policy, **options)`; returns at once.

        For a first plan in a hurry pass `policy="search"` and `options={"budget_s": planner.QUICK_S}`.
        """
        self._send(_problem_bytes(problem, policy, options or {}))

    def result(self, timeout_s: float = 0.0) -> Plan | None:
        """Return the plan of the last `ask`; None where it is not made within `timeout_s` seconds.

        InvalidInput where the planner refuses the policy or the options, PlannerEnded where the process ended,
        ExecutionError where planning failed in another way.
        """
        answer = self._received(timeout_s)
        return None if answer is None else Plan.from_json(answer["plan"])

    def wait(self, timeout_s: float) -> None:
        """Return when there is an answer to the last question, or after `timeout_s` seconds."""
        self._is_answered(timeout_s)

    def _is_answered(self, timeout_s: float) -> bool:
        answered = select.poll()
        answered.register(self._answers, select.POLLIN)
        return bool(answered.poll(timeout_s * 1e3))

    def _send(self, question: bytes) -> None:
        _write(self._message, question)
        with suppress(BrokenPipeError):  # the process has ended, as `result` says
            os.write(self._questions.fileno(), b"?")

    def _received(self, timeout_s: float) -> dict[str, Any] | None:
        """The answer to the last question; None where there is none within `timeout_s`. Errors as those of `result`."""
        if not self._is_answered(timeout_s):
            return None
        if not os.read(self._answers.fileno(), 1):
            raise PlannerEnded(f"planning failed: its process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(_read(self._message))
        if "refused" in answer:
            raise InvalidInput(answer["refused"])
        if "failed" in answer:
            raise ExecutionError(f"planning failed: {answer['failed']}")
        return answer

    def close(self) -> None:
        """End the process at once, even during planning; closing again does nothing."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        message, self._message = self._message, -1  # first: an interrupted call must not close another file later
        if message >= 0:
            os.close(message)
        self._questions.close()
        self._answers.close()


def to_lowest_priority(process: int) -> None:
    """Lower the priority of a process's first thread, and of all that it starts from now on."""
    with suppress(OSError):  # it has ended, or the system knows no such priority
        os.setpriority(os.PRIO_PROCESS, process, _NICEST)
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))


def _write(file: int, content: bytes) -> None:
    os.ftruncate(file, 0)
    left, at = memoryview(content), 0
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written


def _read(file: int) -> bytes:
    size, parts = os.fstat(file).st_size, bytearray()
    while len(parts) < size:
        parts += os.pread(file, size - len(parts), len(parts))
    return bytes(parts)


def _problem_bytes(problem: Problem, policy: str, options: Mapping[str, Any]) -> bytes:
    """The question as JSON, in which equal ops of the graph are written once."""
    graph = problem.graph
    number: dict[Any, int] = {}
    ops = [number.setdefault(op.forecast_key, len(number)) for op in graph.ops]
    distinct = dict(zip(ops, graph.ops))
    return json.dumps({
        "ids": graph.ids, "ops": ops, "distinct": [distinct[i].to_json() for i in range(len(distinct))],
        "edges": graph.edges, "machine": problem.machine.to_json(), "policy": policy, "options": dict(options),
        "curves": to_codes(problem.curves),
    }).encode()  # fmt: skip


def _problem_of(message: bytes) -> tuple[Problem, str, dict[str, Any]]:
    asked = json.loads(message)
    distinct = [Op.from_json(op, pointer="") for op in asked["distinct"]]
    ops, edges = (distinct[number] for number in asked["ops"]), (Edge(*edge) for edge in asked["edges"])
    graph, machine = OpGraph(tuple(asked["ids"]), tuple(ops), tuple(edges)), Machine.from_json(asked["machine"])
    problem = Problem(graph, from_codes(asked["curves"]), machine)
    return problem, asked["policy"], asked["options"]


def _plan(message: bytes) -> dict[str, Any]:
    """The plan that `PlannerProcess.ask` asks for in this message, as JSON."""
    from threadcast.scheduler.planner import plan
    from threadcast.scheduler.policies.registry import check_option_names, names

    problem, policy, options = _problem_of(message)
    if policy in names():
        check_option_names(policy, options)  # `plan` has arguments of its own
    try:
        made = plan(problem, policy=policy, **options)
    except TypeError as error:
        if options:
            return {"refused": str(error)}
        raise
    return {"plan": made.to_json()}


def _answered(message: bytes, answer: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    """The answer to a message, or the reason why there is none."""
    try:
        return answer(message)
    except Exception as error:  # noqa: BLE001 - the caller is told of everything
        if isinstance(error, ValueError):
            return {"refused": str(error)}
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}


def _load() -> Iterator[None]:
    """Load what plans need, in steps: modules, then the machine code of loops."""
    from threadcast.scheduler import planner  # noqa: F401
    from threadcast.scheduler.compile_planner import compile_planner

    yield
    compile_planner()
    yield


def _load_until_asked() -> None:
    questions = select.poll()
    questions.register(0, select.POLLIN)
    try:
        for _ in _load():
            if questions.poll(0):
                return
    except Exception:  # noqa: BLE001 - each answer will say what cannot be loaded
        traceback.print_exc()


def serve(answer: Callable[[bytes], dict[str, Any]]) -> None:
    """Be the process that a `PlannerProcess` has started, until it is closed.

    `answer` returns the answer to a message as JSON.
    """
    message, parent = map(int, sys.argv[1:])
    end_with_parent(parent)
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not look like an answer
    _load_until_asked()
    while os.read(0, 1):
        question = _read(message)
        found = _answered(question, answer)
        _write(message, json.dumps(found).encode())
        os.write(answers, b"!")


if __name__ == "__main__":
    serve(_plan)
