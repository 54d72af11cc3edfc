"""Keeps a plan running as its number of cores changes, by plans for fewer cores that are made in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from threadcast.core import Core, Machine, Plan
from threadcast.core.errors import EngineClosed, ThreadcastError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.sequential import sequential
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies import Problem

ALL_UP_TO = 16
"""Number of cores up to which every number has a plan of its own; above, each number with a plan is an eighth more
than the one before."""
_LOOK_S = 0.05

_logger = logging.getLogger("threadcast")


def counts_below(cores: int) -> list[int]:
    """Return the numbers of cores below `cores` for which plans are made, largest first."""
    found, count = [], 1
    while count < cores:
        found.append(count)
        count += max(1, count // 8) if count >= ALL_UP_TO else 1
    return found[::-1]


class MalleablePlan:
    """Moves `engine`, which runs `plan` on `machine`, to other cores and back.

    Plans for fewer cores are made from `problem` in a process of its own, one after the other; with None no plan is
    made. `known` are such plans that exist already, by number of cores; each is read from it once, when it is needed.
    `done` is called from a thread with all plans for fewer cores when the last is made, or when making them has ended
    early: as soon as they are no longer `wanted()`, too. While there is no plan for a number of cores, operators run
    one after the other, each on all of these cores. `close` ends the thread and the process; the caller closes the
    engine.
    """

    def __init__(
        self, engine: Engine, plan: Plan, machine: Machine, problem: Problem | None, known: Mapping[int, Plan],
        *, done: Callable[[Mapping[int, Plan]], None], wanted: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._engine, self._machine, self._problem, self._done = engine, machine, problem, done
        self._wanted = wanted
        self._graph = engine.captured.graph
        self._order = [core for group in machine.groups for core in group]
        self._known = known
        self._plans: dict[int, Plan] = {len(machine): plan}
        self._stopgaps: dict[int, Plan] = {}
        self._changing = threading.Lock()
        self._cores: tuple[Core, ...] = machine.cores
        self._ending = threading.Event()
        self._planner: PlannerProcess | None = None
        self._thread = threading.Thread(target=self._make, name="threadcast-fewer-cores", daemon=True)
        self._thread.start()

    @property
    def whole(self) -> bool:
        """Whether the plan has as many cores as it was made for."""
        return len(self._cores) >= len(self._machine)

    def resize(self, cores: Sequence[Core]) -> None:
        """Use these cores from the next operator on; only the first of them where the plan is for fewer.

        PlanError where the engine cannot use them. Does nothing once the engine is closed: when the interpreter ends,
        engines are closed before the objects that use them.
        """
        with self._changing:
            home = self._machine.cores
            self._cores = home if set(home) <= set(cores) else tuple(cores[: len(home)])
            try:
                self._apply()
            except EngineClosed:
                self._ending.set()

    def close(self) -> None:
        """Stop making plans, and end the thread and the process that make them."""
        self._ending.set()
        self._thread.join()

    def _apply(self) -> None:
        count = len(self._cores)
        if count == len(self._machine):
            plan, machine = self._plans[count], self._machine
        else:
            plan, machine = self._plan(count)
        self._engine.change(plan, machine, self._cores[: len(machine)])

    def _plan(self, count: int) -> tuple[Plan, Machine]:
        """The best plan so far for at most `count` cores, and the machine of the cores that it is for."""
        best = next((fewer for fewer in counts_below(count + 1) if self._ready(fewer) is not None), 0)
        if best + max(1, best // 8) > count:
            return self._plans[best], self._smaller(best)
        if count not in self._stopgaps:
            machine = self._smaller(count)
            self._stopgaps[count] = sequential(self._graph, machine, machine.cases()[-1])
        return self._stopgaps[count], self._smaller(count)

    def _ready(self, count: int) -> Plan | None:
        """The plan for this number of cores if there is one; always the same object, by which engines know it."""
        if count not in self._plans and (plan := self._known.get(count)) is not None:
            self._plans[count] = plan
        return self._plans.get(count)

    def _smaller(self, count: int) -> Machine:
        return self._machine.limited_to(self._order[:count])

    def _make(self) -> None:
        try:
            for count in counts_below(len(self._machine)):
                with self._changing:
                    known = self._ready(count)
                plan = known or self._planned(count)
                if self._ending.is_set() or not self._wanted():
                    return
                if plan is None:
                    continue
                self._engine.prepare(plan, self._smaller(count))
                with self._changing:
                    self._plans[count] = plan
                    if len(self._cores) == count:
                        self._apply()
        except EngineClosed:
            pass
        except (ThreadcastError, OSError) as error:
            _logger.warning("no more plans for fewer cores are made: %s", error)
        finally:
            if self._planner is not None:
                self._planner.close()
            self._done(self._fewer())

    def _fewer(self) -> Mapping[int, Plan]:
        with self._changing:
            if self._plans.keys() <= {*self._known, len(self._machine)}:
                return self._known  # without reading all of them
            counts = {*self._known, *self._plans} - {len(self._machine)}
            return {count: plan for count in counts if (plan := self._ready(count)) is not None}

    def _planned(self, count: int) -> Plan | None:
        machine = self._smaller(count)
        if self._problem is None:
            return None
        if count == 1:
            case, curves = machine.cases()[0], self._problem.curves
            return sequential(self._graph, machine, case, seconds=curves.seconds[:, curves.cases.index(case)].tolist())
        if self._planner is None:
            self._planner = PlannerProcess(background=True)
        self._planner.ask(Problem(self._graph, self._problem.curves, machine))
        while (plan := self._planner.result()) is None:
            if self._ending.wait(_LOOK_S) or not self._wanted():
                return None
        return plan
