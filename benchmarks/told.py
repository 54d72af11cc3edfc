"""A process that runs calls when it is told to, and is stopped with all that it has started while others run.

It is a script of this folder whose main function calls `serve`; whoever started it tells it by lines of JSON, and reads
one for each.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sessions import Session

from threadcast.core.parent_process import end_with_parent

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class TooLong(RuntimeError):
    """There is no answer in time."""


class Told:
    """A process of a script, ready when this returns; `ready` is what it said of itself.

    Where it ends, or says that it failed, RuntimeError says so, and TooLong where it does not answer in time. It ends
    with the thread that started it.
    """

    def __init__(
        self, script: str, *arguments: str, environment: Mapping[str, str] = os.environ, limit_s: float = math.inf
    ) -> None:
        self._running = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *arguments], env=dict(environment), bufsize=0,
            start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._what, self._session = " ".join([script, *arguments]), Session(self._running.pid)
        try:
            self.ready = self.answer(limit_s)
        except BaseException:
            self.kill()
            raise

    @property
    def session(self) -> int:
        """The session of all its processes, whatever groups they are in."""
        return self._session.leader

    def ask(self, asked: Mapping[str, Any], limit_s: float = math.inf) -> dict[str, Any]:
        """What it answers, within so many seconds."""
        self.begin(asked)
        return self.answer(limit_s)

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Let it go on with this, beside whatever runs."""
        assert self._running.stdin is not None
        self._session.go_on()
        try:
            self._running.stdin.write(json.dumps(asked).encode() + b"\n")
        except BrokenPipeError as error:
            raise RuntimeError(f"{self._what} ended with {self._running.wait()}") from error

    def answer(self, limit_s: float = math.inf) -> dict[str, Any]:
        """What it answers to what it began; then it stops."""
        try:
            found: dict[str, Any] = json.loads(self._line(limit_s))
        finally:
            self._session.stop()
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    def close(self) -> None:
        """Let the process end as others do, so that it stores what it wants to; what is left after 20 s is killed."""
        assert self._running.stdin is not None
        self._session.go_on()
        with suppress(BrokenPipeError):
            self._running.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._running.wait(20)
        self.kill()

    def kill(self) -> None:
        """End the process and all that it has started at once."""
        self._session.kill()
        self._running.wait()
        for stream in (self._running.stdin, self._running.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _line(self, limit_s: float) -> bytes:
        assert self._running.stdout is not None
        end_s, line = time.monotonic() + limit_s, b""
        with selectors.DefaultSelector() as ready:
            ready.register(self._running.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise TooLong(f"no answer within {limit_s:.0f} s")
                if not ready.select(None if math.isinf(left_s) else left_s):
                    continue
                read = self._running.stdout.read(1 << 16)
                if not read:
                    raise RuntimeError(f"{self._what} ended with {self._running.wait()}")
                line += read
        return line


def serve(make: Callable[[], tuple[Mapping[str, Any], Answer]]) -> None:
    """Answer what this process is told, until it is told no more.

    `make` returns what the process says of itself when it is ready, and what gives an answer. An error of either is
    told, and ends the process.
    """
    end_with_parent()  # while it is stopped, too
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints must not get in between
    os.dup2(2, 1)

    def tell(document: Mapping[str, Any]) -> None:
        print(json.dumps(document), file=answers, flush=True)

    try:
        ready, answer = make()
        tell(ready)
        for line in sys.stdin:
            tell(answer(json.loads(line)))
    except Exception as error:  # noqa: BLE001 - an error is a finding, too
        tell({"error": f"{type(error).__name__}: {error}"[:600]})
        os._exit(0)
