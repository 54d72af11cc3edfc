"""Runs the calls of one caller as a tournament decides, within a budget: the one way in which anything is compared."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress

from threadcast.collector.busy import CpuTimes, load_between, read_cpu_times
from threadcast.core.errors import MeasurementError
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.tournament import Tournament

LEAST_S = 0.2
"""Seconds in which it shows what other processes take: the kernel counts in ticks of 0.01 s, so that on 2 cores the
share is known to within 0.05. What takes less is judged by its verdict's interval alone."""

_logger = logging.getLogger("threadcast")


class Rounds(ABC):
    """What runs each call, as `tournament` decides; `budget` says what that may cost.

    `next` names what runs a call, and `tell` takes what came of it. What the tournament asks for is done before the
    next call, or by `do`. A subclass says how candidates are prepared, and what follows from decisions (`carry_out`).
    """

    def __init__(self, tournament: Tournament, budget: Budget) -> None:
        self.tournament, self.budget = tournament, budget
        self._todo: deque[to.Instruction] = deque()
        """What is to be done before the next call."""
        self._learned: to.Key | None = None
        self._since: CpuTimes | None = None
        """The candidate that is being prepared in calls or compared, and the CPU times when that began; None where
        Linux does not say."""
        self._loud: dict[to.Key, bool] = {}
        """Of each candidate whether the times of its preparation, or its last comparison, were loud."""

    @abstractmethod
    def prepare(self, key: to.Key) -> None:
        """Do the next part of a candidate's preparation, which comes between two calls, and tell what follows."""

    @abstractmethod
    def carry_out(self, instruction: to.Instruction) -> None:
        """Do what the tournament asks for."""

    @property
    def pending(self) -> bool:
        """Whether something is to be done before the next call."""
        return bool(self._todo)

    @property
    def loud(self) -> bool:
        """Whether other processes disturbed the preparation, or the last comparison, of any candidate.

        What was found to be slower may be faster without them, so that later processes are not told of it.
        """
        return any(self._loud.values())

    def tell(self, event: to.Event) -> None:
        """Tell the tournament what has happened."""
        self._todo.extend(self.tournament.handle(event))

    @property
    def disturbed(self) -> bool:
        """Whether the next call tells little of how fast it is, so that nothing is learned in it."""
        return False

    def next(self) -> to.Run | to.RunStage:
        """Prepare what comes next, and return what runs the next call."""
        waits = not self.budget.turn()
        while True:
            self.do()
            self.tell(to.Next(self.budget.left_s, waits or self.disturbed))
            what = self._todo.pop()
            self.do()
            if isinstance(what, to.Run | to.RunStage):
                break
            assert isinstance(what, to.Prepare)
            self.prepare(what.key)
        if not waits:
            self.budget.learns(self.tournament.learns)
        comparison = self.tournament.comparison
        learned = comparison.new if comparison is not None else what.key if isinstance(what, to.RunStage) else None
        if learned != self._learned:
            self._note_load()
            self._learned, self._since = learned, None if learned is None else _cpu_times()
        return what

    def count(self, event: to.Ran, what: to.Run | to.RunStage) -> None:
        """Count what a call that `what` ran took, and what it would have taken in eager PyTorch."""
        eager_s = self.tournament.eager_of(event, what)
        self.budget.ran(event.call_s, eager_s=event.seconds if eager_s is None else eager_s)

    def break_off(self) -> None:
        """Take note that other calls have run in between, so that a comparison that has begun a pair begins it anew."""
        self.tournament.handle(to.Next(self.budget.left_s, disturbed=True))

    def passed(self, calls: int) -> None:
        """Take note of calls by the best candidate of which none was timed."""
        self.tell(to.Passed(calls))
        if (best_s := self.tournament.best_s) is not None:
            self.budget.ran(calls * best_s, eager_s=calls * best_s * self.tournament.gain_now)

    def do(self) -> None:
        """Carry out what is to be done. What Ctrl-C interrupts is begun anew later."""
        while self._todo:
            instruction = self._todo[0]
            if isinstance(instruction, to.Compared):
                self._loud[instruction.key] = instruction.verdict.loud
            if isinstance(instruction, to.Compared | to.Drop):
                self._note_load()
            self.carry_out(instruction)
            self._todo.popleft()

    def _note_load(self) -> None:
        """Note what other processes took of the cores since a candidate is being prepared in calls or compared."""
        key, before, self._learned, self._since = self._learned, self._since, None, None
        after = None if before is None else _cpu_times()
        if before is None or after is None or after.time_s - before.time_s < LEAST_S:
            return
        if load_between(before, after).disturbs:
            self._loud[key] = True
            _logger.info("%s was tried while other processes used the cores", key)


def _cpu_times() -> CpuTimes | None:
    """The CPU times of this process's cores; None where Linux does not say."""
    with suppress(MeasurementError):
        return read_cpu_times(os.sched_getaffinity(0))
    return None
