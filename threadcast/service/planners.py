"""The planner processes of a service process: they plan within a request's deadline, a limited number at once."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from typing import Any

from threadcast.core import Plan
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.scheduler.planner_process import PlannerEnded, PlannerProcess
from threadcast.scheduler.policies import Problem
from threadcast.service.deadlines import Deadline, too_late
from threadcast.service.planner_compilation import PlannerCompilation
from threadcast.service.problems import Problem as Refused

_log = logging.getLogger(__name__)


class Planners:
    """A pool of planner processes, which are started when there is something to plan. Safe to use from threads."""

    def __init__(self) -> None:
        self.compilation = PlannerCompilation()
        self._changed = threading.Condition()
        self._idle: list[PlannerProcess] = []
        self._busy: set[PlannerProcess] = set()

    def made(self, problem: Problem, policy: str, options: Mapping[str, Any], until: Deadline, *, most: int) -> Plan:
        """The plan of `problem`, which one of at most `most` processes makes; a Problem as soon as time is up.

        It begins when the planner is compiled. FormatError where the planner refuses the policy or its options.
        """
        self.compilation.wait(until)
        try:
            try:
                return self._attempt(problem, policy, options, until, most)
            except PlannerEnded:  # it may have ended just before it was asked
                return self._attempt(problem, policy, options, until, most)
        except PlannerEnded as error:
            _log.error("%s, twice for one plan", error)
            raise Refused(503, f"{error}; it may have run out of memory, so a smaller graph may be planned") from error
        except InvalidInput as error:
            raise FormatError(str(error), pointer="/options" if options else "/policy") from error

    def close(self) -> None:
        """End all processes; the next plan starts a new one."""
        with self._changed:
            ending, self._idle = [*self._idle, *self._busy], []
        for planner in ending:
            planner.close()

    def _attempt(self, problem: Problem, policy: str, options: Mapping[str, Any], until: Deadline, most: int) -> Plan:
        planner, usable = self._take(until, most), False
        try:
            planner.ask(problem, policy=policy, options=options)
            made = planner.result(until.remaining_s())
            usable = made is not None
        except InvalidInput:
            usable = True
            raise
        finally:
            self._give_back(planner, usable=usable)
        if made is None:
            raise too_late(until.limit_s)
        return made

    def _take(self, until: Deadline, most: int) -> PlannerProcess:
        with self._changed:
            while not self._idle and len(self._busy) >= most:
                self._changed.wait(until.remaining_s())
            planner = self._idle_one() or PlannerProcess(stderr=None)
            self._busy.add(planner)
            return planner

    def _idle_one(self) -> PlannerProcess | None:
        while self._idle:
            planner = self._idle.pop()
            if planner.alive:
                return planner
            planner.close()
        return None

    def _give_back(self, planner: PlannerProcess, *, usable: bool) -> None:
        if not usable:
            planner.close()
        with self._changed:
            self._busy.discard(planner)
            if usable:
                self._idle.append(planner)
            self._changed.notify()


_planners = Planners()
atexit.register(_planners.close)
made, close, compilation = _planners.made, _planners.close, _planners.compilation
