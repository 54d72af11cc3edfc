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
from threadcast.runtime.engine.executor import Executor
from threadcast.runtime.engine.replay import THREADS_PER_CORE, Team, seats_of
from threadcast.threads.openmp import end_idle_workers

T = TypeVar("T")


class Executors:
    """The executors of one machine's cores, one for each team, created at first use.

    Engines may share an `Executors`. A step runs with the lock `turn` held, because two steps that each had half of the
    teams would wait for each other forever. The threads end at `close`, when this object is garbage-collected, and when
    the interpreter exits. Creating executors does not change thread counts or affinity of other threads.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.turn = threading.Lock()
        """Lock that is held during a step. Call `check` first: where that raises, the lock might never become free."""
        self._executors: dict[Team, Executor] = {}
        self._making = threading.Lock()
        self._process = os.getpid()
        self._end = weakref.finalize(self, _end, self._executors, self.turn, self._process)

    def make(self, teams: Iterable[Team]) -> None:
        """Create executors for those of `teams` that have none.

        PlanError for cores that the machine lacks, and for too many threads in all; ExecutionError as in `check`.
        """
        self.check()
        for team in teams:
            self._get(team)

    def change(self, teams: Sequence[Team]) -> None:
        """Create executors for those of `teams` that have none, and end those of other teams.

        Call this between two steps, with `turn` held. Raises what `make` raises.
        """
        self.check()
        with self._making:
            ending = [self._executors.pop(team) for team in {*self._executors} - {*teams}]
            for executor in ending:
                executor.end()
            for executor in ending:
                executor.join()
        self.make(teams)

    def submit(self, team: Team, job: Callable[[], None]) -> None:
        """Let `team` run `job` as soon as it is free; the job must not raise."""
        self._get(team).submit(job)

    def settle(self) -> None:
        """End the calling thread's idle OpenMP workers. Call this before every step, with `turn` held."""
        self.check()
        end_idle_workers()  # the caller's own: they would spin on the executors' cores

    def rest(self) -> None:
        """End the idle OpenMP workers of all teams until they are next needed, so that they do not slow others down.

        See `threads.openmp`. Call this before steps that do not use these teams; their next own step is slower.
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
        """End all threads once the current step is done. In a forked child, which has no threads, do nothing."""
        self._end()

    def check(self) -> None:
        """Raise EngineClosed if the threads have ended, ExecutionError if they belong to the process that this one was
        forked from."""
        if os.getpid() != self._process:
            raise ExecutionError(
                f"the engine's threads stayed in process {self._process}, of which this one is a fork; "
                "make the engine, or what optimize or optimize_training returned, anew in this process"
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
    """Call `function` in a thread of its own and return its result."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    found: T = result[0]
    return found
