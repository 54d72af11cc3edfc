"""One plan from a planner process: the caller's steps go on meanwhile."""

from __future__ import annotations

from threadcast.core import Plan
from threadcast.core.errors import ExecutionError, InvalidInput
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies import Problem


class Planning:
    """A plan being made for `problem`. `close` ends the process that makes it.

    In the `background` it takes only what nobody else wants of the cores.
    """

    def __init__(self, problem: Problem, *, background: bool = False) -> None:
        self._planner = PlannerProcess(background=background)
        self._planner.ask(problem)
        self._plan: Plan | None = None

    @property
    def process(self) -> int:
        """The id of the process."""
        return self._planner.pid

    def result(self) -> Plan | None:
        """The plan; None as long as it is being made. ExecutionError where planning failed."""
        if self._plan is None:
            try:
                self._plan = self._planner.result()
            except InvalidInput as error:
                raise ExecutionError(f"planning failed: {error}") from error
        return self._plan

    def close(self) -> None:
        """End the process; closing again does nothing."""
        self._planner.close()
