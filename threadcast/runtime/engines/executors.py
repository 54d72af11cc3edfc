"""The executors of a machine: one for each team that a plan or policy asks for."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from threadcast.core import Machine
from threadcast.core.errors import EngineClosed, ExecutionError, PlanError
from threadcast.runtime.engines.executor import Executor
from threadcast.runtime.engines.replay import THREADS_PER_CORE, Team, seats_of
from threadcast.threads.openmp import end_idle_workers

T = TypeVar("T")

SPARE_THREADS_PER_CORE = 4
"""Threads per core of the machine up to which teams of earlier plans stay alive: the same cores often come back."""


class Executors:
    """The executors of one machine's cores, one a team, created at first use.

    Engines may share one. A step runs with `turn` held: two steps that each had half of the teams would wait for
    each other. The threads end at `close`, when this object is garbage, and when the interpreter exits. Making
    teams leaves the thread counts and affinity of other threads as they are.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.turn = threading.Lock()
        """Held during a step, after `check` has found that it can ever be had."""
        self._executors: dict[Team, Executor] = {}
        self._making = threading.Lock()
        self._process = os.getpid()
        self._end = weakref.finalize(self, _end, self._executors, self.turn, self._process)

    def make(self, teams: Iterable[Team]) -> None:
        """Create the executors that `teams` lack; PlanError for cores that the machine lacks, or too many teams.

        ExecutionError as `check` raises it.
        """
        self.check()
        for team in teams:
            self._get(team)

    def change(self, teams: Sequence[Team]) -> None:
        """Create the executors that `teams` lack; of the others end the least recently used ones above a limit.

        Call it with `turn` held, between two steps. Raises what `make` raises.
        """
        self.check()
        with self._making:
            for team in teams:
                if team in self._executors:
                    self._executors[team] = self._executors.pop(team)  # to the end, as those that are made
            threads = sum(team.threads for team in {*self._executors, *teams})
            ending = []
            for team in [team for team in self._executors if team not in set(teams)]:
                if threads <= SPARE_THREADS_PER_CORE * len(self.machine):
                    break
                threads -= team.threads
                ending.append(self._executors.pop(team))
            for executor in ending:
                executor.end()
            for executor in ending:
                executor.join()
        self.make(teams)

    def submit(self, team: Team, job: Callable[[], None]) -> None:
        """Let `team` do `job`, which must not raise, when it is free."""
        self._get(team).submit(job)

    def settle(self) -> None:
        """End the caller's idle OpenMP workers. Call it before every step, with `turn` held."""
        self.check()
        end_idle_workers()  # the caller's own: they would spin on the executors' cores

    def rest(self) -> None:
        """End all idle OpenMP workers until they are next needed, so that they slow nobody else's steps down.

        See `threads.openmp`. Call it before steps that do not use these teams; the first step after it is slower.
        """
        if not self._end.alive or os.getpid() != self._process:
            return
        done: SimpleQueue[bool] = SimpleQueue()
        with self.turn:
            wide = [executor for team, executor in self._executors.items() if team.threads > 1]
            for executor in wide:
                executor.submit(lambda: done.put(end_idle_workers()))
            for _ in wide:
                done.get()

    def close(self) -> None:
        """End all threads when the step under way is done. In a forked child there are none to end."""
        self._end()

    def check(self) -> None:
        """Raise EngineClosed when the threads have ended, ExecutionError where they belong to the process that this was
        forked from."""
        if os.getpid() != self._process:
            raise ExecutionError(
                f"the engine's threads stayed in process {self._process}, of which this one is a fork; "
                "make an engine after the fork"
            )
        if not self._end.alive:
            raise EngineClosed("the engine is closed; make a new one")

    def _get(self, team: Team) -> Executor:
        found = self._executors.get(team)
        if found is not None:
            return found
        with self._making:
            if team not in self._executors:
                cpus = self._cpus(team)
                default = _in_thread(torch.get_num_threads)
                try:
                    self._executors[team] = Executor(cpus, team.threads)
                finally:
                    # torch keeps one number for threads that first use it; making a team has set it to the team's
                    _in_thread(lambda: torch.set_num_threads(default))
            return self._executors[team]

    def _cpus(self, team: Team) -> tuple[int, ...]:
        seats = seats_of(team, self.machine)
        threads = team.threads + sum(other.threads for other in self._executors)
        limit = THREADS_PER_CORE * len(self.machine.cores)
        if threads > limit:
            raise PlanError(
                f"the plan needs {len(self._executors) + 1} or more different teams with {threads} threads, more than "
                f"{limit}; use a policy that gives ops the same few core sets"
            )
        return tuple(dict.fromkeys(cpu for cpu, _ in seats))


def _end(executors: dict[Team, Executor], turn: threading.Lock, process: int) -> None:
    if os.getpid() != process:
        return
    with turn:
        for executor in executors.values():
            executor.end()
        for executor in executors.values():
            executor.join()
        executors.clear()


def _in_thread(function: Callable[[], T]) -> T:
    """What `function` returns in a thread of its own."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    found: T = result[0]
    return found
