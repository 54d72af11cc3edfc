"""Runs an op over and over on some cores, from a process of its own, while another op is timed elsewhere.

It is a process, because two threads of one interpreter take turns at its lock, which would slow down small ops more
than the hardware does. `Partner` is the caller's end; `python -m` this module is the other. They exchange JSON lines:
the cores first, then `{"op": ...}` to prepare an op, `{"run": true}` and `{"run": false}` to start and stop it. Each
is answered by `{}` once it is done, or by `{"error": text}`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TextIO, cast

from threadcast.collector.cache_room import eviction_bytes
from threadcast.core import Machine, Op
from threadcast.core.errors import MeasurementError
from threadcast.threads.affinity import ThreadTeam
from threadcast.threads.memory import keep_freed_memory, memory_regime

PLACING_S = 0.01
"""Seconds between two searches for new threads of the team; a search costs some 0.1 ms."""


class Partner:
    """A process with a team of threads on all cores of `machine`: `with Partner(machine) as partner:`.

    Its methods raise MeasurementError where the process has ended, or cannot run the op.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__]
        pipe = subprocess.PIPE
        # a session of its own: Ctrl-C is for the caller, whose end closes the pipe
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        try:
            self._ask({"machine": self._machine.to_json(), "memory": memory_regime()})
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes its input, which ends it

    def prepare(self, op: Op) -> None:
        """Choose the op that `running` repeats, and run it once."""
        self._ask({"op": op.to_json()})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have the prepared op run again and again inside the block, which begins when the op has run once."""
        self._ask({"run": True})
        try:
            yield
        finally:
            self._ask({"run": False})

    @property
    def _pipes(self) -> tuple[TextIO, TextIO]:
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:  # cannot be: both pipes were requested
            raise MeasurementError("the process beside has no pipes")
        return cast(TextIO, requests), cast(TextIO, answers)

    def _ask(self, request: dict[str, Any]) -> None:
        requests, answers = self._pipes
        try:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise MeasurementError(f"the process on cpus {self._cpus()} ended; its message is above")
        answer = json.loads(line)
        if "error" in answer:
            raise MeasurementError(f"the op beside on cpus {self._cpus()} failed: {answer['error']}")

    def _cpus(self) -> tuple[int, ...]:
        return self._machine.cpus(core.id for core in self._machine.cores)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Carry out the request in each line of `requests` and answer it, until the lines end."""

    def answer(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    first = json.loads(requests.readline())
    if first["memory"] == "kept":
        keep_freed_memory(one_heap=True)
    machine = Machine.from_json(first["machine"])
    cores = tuple(core.id for core in machine.cores)
    with ThreadTeam(machine.cpus(cores)) as team:
        loop = _Loop(team, eviction_bytes(machine, cores))
        answer({})
        try:
            for line in requests:
                try:
                    loop.obey(json.loads(line))
                except Exception as error:  # noqa: BLE001 - a kernel may raise anything; the caller is told
                    answer({"error": f"{type(error).__name__}: {error}"})
                else:
                    answer({})
        finally:
            loop.stop()


class _Loop:
    """One op, repeated by the team until `stop`."""

    def __init__(self, team: ThreadTeam, bytes_between: int) -> None:
        self._team, self._bytes_between = team, bytes_between
        self._stopping, self._began = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._run: Callable[[], None] | None = None
        self._failure: Exception | None = None

    def obey(self, request: dict[str, Any]) -> None:
        if "op" in request:
            self._run = None  # frees the last op's tensors first
            self._run = self._team.run(lambda: self._prepared(Op.from_json(request["op"])))
        elif request["run"]:
            self._start()
        else:
            self.stop()

    def stop(self) -> None:
        """Stop running the op, and raise the exception that ended it before, if any."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _start(self) -> None:
        run = self._run
        if run is None:
            raise MeasurementError("there is no op to run; prepare one")
        self._stopping.clear()
        self._began.clear()
        self._thread = threading.Thread(target=lambda: self._team.run(lambda: self._repeat(run)))
        self._thread.start()
        self._began.wait()
        if self._failure is not None:
            self.stop()

    def _prepared(self, op: Op) -> Callable[[], None]:
        from threadcast.capture.graph.program import below_autograd
        from threadcast.collector.operators import prepare
        from threadcast.collector.rotation import RotatedOp

        with below_autograd():
            rotated = RotatedOp(prepare(op), self._bytes_between)

        def run_for_a_while() -> None:
            with below_autograd():
                end_s = time.monotonic() + PLACING_S
                while time.monotonic() < end_s and not self._stopping.is_set():
                    rotated.run()
                    rotated.reset()

        return run_for_a_while

    def _repeat(self, run: Callable[[], None]) -> None:
        try:
            while not self._stopping.is_set():
                run()
                self._began.set()
                self._team.place()
        except Exception as error:  # noqa: BLE001 - carried to `stop`
            self._failure = error
        finally:
            self._began.set()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
