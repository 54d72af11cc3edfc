"""The executors: pinned threads, each with an OpenMP team of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Any, TypeVar

import torch

from threadcast.collector.affinity import ThreadTeam
from threadcast.core import Machine
from threadcast.core.errors import ExecutionError, PlanError
from threadcast.scheduler.runtime.openmp import end_idle_workers
from threadcast.scheduler.runtime.replay import Team

T = TypeVar("T")

THREADS_PER_CORE = 64
"""Threads that executors may have in all, per core of the machine. Every team ever used keeps its threads, asleep;
a plan that gives each op cores of its own choice would make thousands."""


class Executors:
    """The teams of one machine's cores, each led by a thread that takes jobs in turn; made when first needed.

    Engines may share one. Whoever runs a step holds `turn`, or two steps that each had half of the teams would wait
    for each other. The threads end at `close`, when this object is garbage, and when the
    interpreter exits. Making teams leaves the thread counts and affinity of other threads as they are.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._teams: dict[Team, ThreadTeam] = {}
        self._stack = ExitStack()
        self._process = os.getpid()
        self._closed = False
        self.turn = threading.Lock()
        """Held during a step, after `check` has found that it can ever be had."""
        self._making = threading.Lock()

    def make(self, teams: Iterable[Team]) -> None:
        """Make those of `teams` that do not exist yet; PlanError for cores that the machine lacks or too many teams."""
        for team in teams:
            self._get(team)

    def submit(self, team: Team, job: Callable[[], T]) -> Future[T]:
        """Let the leader of `team` call `job` when it is free."""
        return self._get(team).submit(job)

    def settle(self) -> None:
        """Make the cores free for a step; to be called before every one, with `turn` held."""
        self.check()
        end_idle_workers()  # the caller's own: they would spin on the executors' cores

    def rest(self) -> None:
        """End all idle OpenMP workers until they are next needed, so that they slow nobody else's steps down.

        See `runtime.openmp`. Call it before steps that do not use these teams; the first step after it is slower.
        """
        if self._closed or os.getpid() != self._process:
            return
        with self.turn:
            wait([team.submit(end_idle_workers) for key, team in self._teams.items() if key.threads > 1])

    def close(self) -> None:
        """End all threads when the step under way is done. In a forked child there are none to end."""
        if os.getpid() != self._process:
            return
        with self.turn:
            self._closed = True
            self._stack.close()
            self._teams.clear()

    def check(self) -> None:
        """Raise ExecutionError when the threads have ended, or belong to the process of which this is a fork."""
        if os.getpid() != self._process:
            raise ExecutionError(
                f"the engine's threads stayed in process {self._process}, of which this one is a fork; "
                "make an engine after the fork"
            )
        if self._closed:
            raise ExecutionError("the engine is closed; make a new one")

    def _get(self, team: Team) -> ThreadTeam:
        found = self._teams.get(team)
        if found is not None:
            return found
        with self._making:
            if team not in self._teams:
                cpus = self._cpus(team)
                default = _in_thread(torch.get_num_threads)
                try:
                    self._teams[team] = self._stack.enter_context(ThreadTeam(cpus, size=team.threads))
                finally:
                    # torch keeps one number for threads that first use it; making a team has set it to the team's
                    _in_thread(lambda: torch.set_num_threads(default))
            return self._teams[team]

    def _cpus(self, team: Team) -> tuple[int, ...]:
        known = {core.id: core.cpus for core in self.machine.cores}
        unknown = [core for core in team.cores if core not in known]
        if unknown:
            raise PlanError(
                f"cores {unknown} are not among the {len(known)} of {self.machine.name}; plan for this machine"
            )
        threads, limit = team.threads + sum(other.threads for other in self._teams), THREADS_PER_CORE * len(known)
        if threads > limit:
            raise PlanError(
                f"the plan needs {len(self._teams) + 1} or more different teams with {threads} threads, more than "
                f"{limit}; use a policy that gives ops the same few core sets"
            )
        placed = (known[core][min(lane, len(known[core]) - 1)] for core, lane in team.lanes)
        return tuple(dict.fromkeys(placed))[: team.threads]


def _in_thread(function: Callable[[], T]) -> T:
    """What `function` returns in a thread of its own."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    found: T = result[0]
    return found
