"""One step under way: what the threads that take part in it share, and how it ends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadcast.capture.program import below_autograd
from threadcast.runtime.engines.executors import Executors
from threadcast.runtime.engines.replay import Team


class Step(ABC):
    """The slots of one step and the jobs that fill them.

    The first job, `begin`, launches the others, which may launch more. The step ends when none is left. Once `error` is
    set, jobs return before their next op, and the last one out frees all values.

    Ctrl-C raises KeyboardInterrupt in the main thread between any two bytecodes. So the main thread only asks and
    waits; whatever must not be left half done happens in other threads.
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
        """The first job."""

    @property
    @abstractmethod
    def teams(self) -> Sequence[Team]:
        """Who ran each op of a finished step."""

    def complete(self, team: Team) -> None:
        """Let `team` begin; return when the step has ended, or raise what ended it.

        An exception in the calling thread (Ctrl-C) ends the step too; the ops that run then are waited for.
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
        """Let `team` do `job`, from within a job; what it raises ends the step."""
        with self.lock:
            self._jobs += 1
        try:
            self._executors.submit(team, partial(self._run, job))
        except BaseException:
            self._leave()
            raise

    def stop(self, error: BaseException) -> None:
        """End the step with `error`, unless it has ended with another one."""
        with self.lock:
            if self.error is None:
                self.error = error
                self.wake_all()

    def wake_all(self) -> None:  # noqa: B027 - only where jobs wait is there somebody to wake
        """Wake the jobs that wait for others; called with the lock held, once the error is set."""

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
