"""A running step: the state that its threads share, and how the step ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadcast.capture.graph.program import Call, below_autograd
from threadcast.runtime.engine.executors import Executors
from threadcast.runtime.engine.lifetimes import Lifetimes
from threadcast.runtime.engine.replay import Replay

ReplayedOp = tuple[int, int, tuple[int, ...], bool]
"""Number of the op, the slot that it fills, slots to empty after it, whether its finish must be reported to others."""


class Step:
    """The slots of one step and the jobs that fill them: one for each team, which runs its sequence of ops.

    The first team's job launches the others. The step ends when no job is left. Once `error` is set, jobs return before
    their next op, and the last job to return frees all values.

    Ctrl-C raises KeyboardInterrupt in the main thread between any two bytecodes. Therefore the main thread only starts
    the step and waits; everything that must not be left half done happens in other threads.
    """

    def __init__(
        self, slots: list[Any], executors: Executors, calls: Sequence[Call], replay: Replay, lives: Lifetimes,
        sequences: Sequence[Sequence[ReplayedOp]],
    ) -> None:  # fmt: skip
        self.slots = slots
        self._calls, self._replay, self._lives, self._sequences = calls, replay, lives, sequences
        self._awaited = [len(ops) for ops in replay.waits]
        self._users = dict(lives.users)
        self._parked: dict[int, threading.Lock] = {}  # op -> what its team sleeps on until the op may start
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self._executors = executors
        self._jobs = 1
        self._ended = threading.Lock()
        self._ended.acquire()

    def complete(self) -> None:
        """Run all jobs; return when the step has ended, or raise the exception that ended it.

        An exception in the calling thread (Ctrl-C) also ends the step; ops that are running then finish first.
        """
        launched = False
        try:
            self._executors.submit(self._replay.teams[0], partial(self._run, self._begin))
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

    def _begin(self) -> None:
        """Start the other teams, then run the first team's ops."""
        for team, theirs in zip(self._replay.teams[1:], self._sequences[1:], strict=True):
            with self.lock:
                self._jobs += 1
            try:
                self._executors.submit(team, partial(self._run, partial(self._play, theirs)))
            except BaseException:
                self._leave()
                raise
        self._play(self._sequences[0])

    def stop(self, error: BaseException) -> None:
        """End the step with `error`, unless it is already ending with another error."""
        with self.lock:
            if self.error is None:
                self.error = error
                for gate in self._parked.values():
                    gate.release()
                self._parked.clear()

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

    def _play(self, sequence: Sequence[ReplayedOp]) -> None:
        """Run a team's ops to the end, or until the step has failed."""
        slots, calls, awaited = self.slots, self._calls, self._awaited
        for op, slot, empties, awaited_by_others in sequence:
            if awaited[op]:
                self._sleep_until_ready(op)
            if self.error is not None:
                return
            slots[slot] = calls[op](slots)
            for empty in empties:
                slots[empty] = None
            if awaited_by_others:
                self._report(op)

    def _sleep_until_ready(self, op: int) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self.lock:
            if not self._awaited[op] or self.error is not None:
                return
            self._parked[op] = gate
        gate.acquire()

    def _report(self, op: int) -> None:
        with self.lock:
            for other in self._replay.tells[op]:
                self._awaited[other] -= 1
                if not self._awaited[other] and (gate := self._parked.pop(other, None)) is not None:
                    gate.release()
            for slot in self._lives.counted[op]:
                self._users[slot] -= 1
                if not self._users[slot]:
                    self.slots[slot] = None
