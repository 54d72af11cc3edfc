"""A running step: the state that its threads share, and how the step ends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from threadcast.capture.program import below_autograd
from threadcast.runtime.engines.executors import Executors
from threadcast.runtime.engines.replay import Team


class Step(ABC):
    """The slots of one step and the jobs that fill them.

    The first job, `begin`, launches other jobs, which may launch more. The step ends when no job is left. Once `error`
    is set, jobs return before their next op, and the last job to return frees all values.

    Ctrl-C raises KeyboardInterrupt in the main thread between any two bytecodes. Therefore the main thread only starts
    the step and waits; everything that must not be left half done happens in other threads.
    """

    def __init__(self, slots: list[Any], executors: Executors) -> None:
        self.slots = slots
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self._executors = executors
        self._jobs = 1
        self._ended = threading.Lock()
        self._ended.acquire()

    @abstractmethod
    def begin(self) -> None:
        """Run the first job, which launches the others."""

    def complete(self, team: Team) -> None:
        """Let `team` run the first job; return when the step has ended, or raise the exception that ended it.

        An exception in the calling thread (Ctrl-C) also ends the step; ops that are running then finish first.
        """
        launched = False
        try:
            self._executors.submit(team, partial(self._run, self.begin))
            launched = True
            self._ended.acquire()
        except BaseException as error:
            stopper = threading.Thread(target=self.stop, args=(error,))
            stopper.start()
            stopper.join()
            if launched:
                if self._jobs:  # else the interrupt came when the step had just ended
                    self._ended.acquire()
                self.slots.clear()
                self.error = None
            raise
        failure, self.error = self.error, None  # else its traceback, which knows this step, would keep both alive
        try:
            if failure is not None:
                raise failure
        finally:
            del failure

    def launch(self, team: Team, job: Callable[[], None]) -> None:
        """Let `team` run `job`. Call this from within a job. An exception of `job` ends the step."""
        with self.lock:
            self._jobs += 1
        try:
            self._executors.submit(team, partial(self._run, job))
        except BaseException:
            self._leave()
            raise

    def stop(self, error: BaseException) -> None:
        """End the step with `error`, unless it is already ending with another error."""
        with self.lock:
            if self.error is None:
                self.error = error
                self.wake_all()

    def wake_all(self) -> None:  # noqa: B027 - only where jobs wait is there somebody to wake
        """Wake the jobs that wait for others. Called with `lock` held, once `error` is set."""

    def _run(self, job: Callable[[], None]) -> None:
        try:
            with below_autograd():
                job()
        except BaseException as error:  # noqa: BLE001 - carried to the caller, whose `complete` raises it
            self.stop(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self.lock:
            self._jobs -= 1
            ended = self._jobs == 0
        if ended:
            if self.error is not None:
                self.slots.clear()
            self._ended.release()
