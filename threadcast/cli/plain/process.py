"""A process that times a network's step in plain PyTorch at one setting."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Self

from threadcast.core import errors
from threadcast.core.errors import MeasurementError, NetworkError, ThreadcastError

_ENDING_S = 5.0
"""Longest wait in seconds for the exit code of a process that has closed its pipes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting at which the step runs. `advice` tells how to get it in plain PyTorch; None: the current setting."""

    name: str
    advice: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    channels_last: bool = False
    threads: int | None = None


class PlainProcess:
    """A process that runs `plain_step` at one setting; it ends with the `with` block.

    `request` names the network, its size, batch, mode and optimizer. MeasurementError where the process ends early or
    does not answer within `timeout_s`. Where the network raises at the current setting, the error is raised here.
    """

    def __init__(self, setting: Setting, request: Mapping[str, Any], timeout_s: float) -> None:
        self.setting = setting
        self.description: dict[str, Any] = {}
        """What the process says of the step: threads, mode, size, batch and more."""
        self.turns: list[dict[str, Any]] = []
        """Of each turn, the seconds of each step, page faults and peak memory in bytes."""
        self.failure: str | None = None
        """The network's exception at another setting than the current one; None where there was none."""
        self._request = {**request, "threads": setting.threads, "channels_last": setting.channels_last}
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "threadcast.cli.plain.step"]
        environment = {**os.environ, **self.setting.environment}
        # A session of its own: Ctrl-C is for the caller, who then ends the process and what it may have started.
        self._running = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._errors, bufsize=0, env=environment, start_new_session=True
        )
        try:
            assert self._running.stdin is not None
            assert self._running.stdout is not None
            self._requests, self._answers = self._running.stdin, self._running.stdout
            self._send(self._request)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._running.returncode is None:  # while it is not reaped, the number is its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
        self._running.communicate()
        self._errors.close()

    def get_ready(self) -> None:
        """Wait until the process has built the step and warmed it up."""
        self.description = self._answer()

    def take_turn(self, steps: int) -> None:
        """Time `steps` steps, unless the network has failed."""
        if self.failure is None:
            self._send(steps)
            self.turns.append(self._answer())

    def _send(self, request: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # then there is no answer, which tells more
            self._requests.write(json.dumps(request).encode() + b"\n")

    def _answer(self) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(self._timeout_s * 1e3):
            raise MeasurementError(
                f"steps {self._named} took longer than {self._timeout_s:g} s; choose a smaller size or batch"
            )
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise MeasurementError(f"the process that ran steps {self._named} ended: {self._end()}")
        answer: dict[str, Any] = json.loads(line)
        error = answer.get("error")
        if error is not None and self.setting.advice is None:
            raise _raised(self._request["network"], error)
        self.failure = None if error is None else _described(error)
        return answer

    @property
    def _named(self) -> str:
        return "as run now" if self.setting.advice is None else f"with {self.setting.name}"

    def _end(self) -> str:
        """A text of how the process ended: its exit code or signal, and the last line that it wrote to stderr."""
        try:
            code = self._running.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return "it gave no answer"
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        memory = ["memory may have run out: choose a smaller size or batch"] if code == -signal.SIGKILL else []
        return ", ".join([how, *last, *memory])


def _raised(network: str, failure: Mapping[str, str]) -> ThreadcastError:
    """The network's exception at the current setting, to be raised in this process."""
    kind = getattr(errors, failure["type"], None)
    if isinstance(kind, type) and issubclass(kind, ThreadcastError):
        return kind(failure["message"])
    return NetworkError(f"a step of {network} raised {_described(failure)}")


def _described(failure: Mapping[str, str]) -> str:
    return f"{failure['type']}: {failure['message']}"
