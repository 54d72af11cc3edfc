"""Has plans made by another process, one after the other, for all that is called in this one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakSet

import torch

from threadcast.core import Machine
from threadcast.core.errors import ExecutionError, ThreadcastError
from threadcast.runtime.plans.forecasting_planner import ForecastingPlanner
from threadcast.runtime.plans.step_forecasts import Answer, Question
from threadcast.scheduler.compile_planner import is_compiled
from threadcast.threads.lasting import in_lasting_thread

SMALL = 1_000
"""Largest number of ops times cores for which the planner's loops run as Python in any case: for 70 ops on 2 cores the
first plan takes 0.4 s of a core, and 1.0 s where the process loads compiled loops. Plans took up to 1 % longer."""
AS_PYTHON = 10_000
"""Largest number of ops times cores for which the planner's loops run as Python where they were never compiled on this
machine: a plan then takes up to 2 s, and compiling 20 s of a core, which steps would lose."""

ANSWER_S = 60.0
"""Longest time in seconds that a plan may take, with reading a store and loading libraries."""
PATIENCE_S = 1.0
"""Seconds of all cores' time that one core is left to the planning process for a plan: 2 s of two cores, 54 s of many.
Then steps use all cores again, unless learning may lose any time."""
IDLE_ANSWER_S = 900.0
"""Longest time in seconds that a plan may take once that is so."""


@dataclass(slots=True, eq=False)
class Asked:
    """A question to a `Planner`: it waits until `answer` is there, or `error` says why there will be none."""

    question: Question
    answer: Answer | None = None
    error: ExecutionError | None = None

    @property
    def waits(self) -> bool:
        """Whether there is neither answer nor error."""
        return self.answer is None and self.error is None


class Planner:
    """One planning process for all that is called in this process, on the cores of `machine`; for any thread.

    It starts at the first question, answers one after the other, and ends when no user is left that may ask. It has the
    lowest priority and gets CPU time that nothing else wants, so that the caller's own operators between two steps run
    as fast as without it. Steps leave it a core, unless a plan takes long (`yields`).
    """

    def __init__(self, machine: Machine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, RLock()
        self._cpus, self._others = sorted(cpu for core in machine.cores for cpu in core.cpus), max(1, len(machine) - 1)
        self._patience_s = min(PATIENCE_S * len(machine), 0.9 * ANSWER_S)  # later it would be given up
        self.yields = False
        """Whether the last plan takes long, so that steps need not leave its process a core."""
        self.unlimited = False
        """Whether a plan may take a core from the steps for as long as it takes."""
        self._process: ForecastingPlanner | None = None
        self._users: WeakSet[object] = WeakSet()
        self.asked: Asked | None = None
        """The question that is being answered; None where none is."""
        self._asked_s = 0.0
        self._waiting: deque[Asked] = deque()

    @property
    def free(self) -> bool:
        """Whether nothing is being planned: every question has its answer."""
        if self.asked is None:
            return True
        with self._lock:
            self._receive()
            return self.asked is None

    @property
    def works(self) -> bool:
        """Whether a plan is being made now on a core that steps want, too: for any model on these cores."""
        return not self.free and not self.yields

    def begin(self, user: object) -> None:
        """Take note that `user` may ask, until it is `done`, or there is no other reference to it."""
        with self._lock:
            self._users.add(user)

    def ask(self, question: Question) -> Asked:
        """Have a plan made, after those that were asked for before."""
        asked = Asked(question)
        with self._lock:
            self._waiting.append(asked)
            self._begin_next()
        return asked

    def _begin_next(self) -> None:
        while self.asked is None and self._waiting:
            self.asked, self._asked_s, self.yields = self._waiting.popleft(), self._clock(), False
            try:
                self._start(self.asked.question)
            except (ThreadcastError, OSError) as error:  # such as one process or open file too many
                self._end(str(error))

    def _start(self, question: Question) -> None:
        size = len(question.graph) * len(question.machine)
        compiles = size > AS_PYTHON or (size > SMALL and is_compiled())
        if self._process is not None and compiles and not self._process.compiles:
            self._process.close()
            self._process = None
        if self._process is None:
            # it ends with the thread that starts it, which of a server may be one for this request
            start = partial(ForecastingPlanner, cpus=self._cpus, compiles=compiles, background=True)
            self._process = in_lasting_thread(start)
        self._process.ask_forecast(question)

    def answer(self, asked: Asked) -> Answer | None:
        """Return the answer to a question; None until it is there. ExecutionError where there is none."""
        with self._lock:
            if asked.waits:
                self._receive()
            if asked.error is not None:
                raise asked.error
            return asked.answer

    def wait(self, timeout_s: float) -> None:
        """Return when the question that is being answered has its answer, or after `timeout_s` seconds."""
        process = self._process
        if self.asked is not None and process is not None:
            process.wait(timeout_s)

    def give_up(self, asked: Asked) -> None:
        """Wait for this answer no longer."""
        with self._lock:
            if asked is self.asked:
                self._end("it was given up")
                self._begin_next()
            elif asked in self._waiting:
                self._waiting.remove(asked)
                asked.error = ExecutionError("it was given up")

    def leaving_a_core(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Run a step of PyTorch's on the cores that one which computes beside it leaves.

        All threads of an operator would wait for the one that shares a core with that: on 2 cores calls took 2.0 times
        as long beside 0.50 of a core, and on one thread 1.3 to 1.7 times as long beside 0.8 to 1.0.
        """
        before = torch.get_num_threads()
        fewer = min(self._others, before)
        torch.set_num_threads(fewer)
        try:
            return run(*arguments)
        finally:
            if torch.get_num_threads() == fewer:  # else the step, or an arbiter meanwhile, has set another number
                torch.set_num_threads(before)

    def done(self, user: object) -> None:
        """Take note that `user` will not ask again; the process ends where no other may."""
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self.close()

    def close(self) -> None:
        """End the process; closing again does nothing."""
        with self._lock:
            while self._waiting:
                self._waiting.pop().error = ExecutionError("the planner was closed")
            self._end("the planner was closed")

    def _receive(self) -> None:
        if self.asked is None:
            return
        assert self._process is not None
        try:
            self.asked.answer = self._process.forecast()
        except ThreadcastError as error:
            self._end(str(error))
        else:
            self._be_patient(self.asked)
        self._begin_next()

    def _be_patient(self, asked: Asked) -> None:
        """Give up a plan that has taken too long, and leave the process no core where it takes long."""
        if not asked.waits:
            self.asked = None
            return
        waited_s, most_s = self._clock() - self._asked_s, IDLE_ANSWER_S if self.yields else ANSWER_S
        if waited_s > most_s:
            self._end(f"planning took longer than {most_s:g} s")
        elif waited_s > self._patience_s and not (self.yields or self.unlimited):
            self.yields = True

    def _end(self, reason: str) -> None:
        if self.asked is not None:
            self.asked.error, self.asked = ExecutionError(reason), None
        if self._process is not None:
            self._process.close()
            self._process = None
