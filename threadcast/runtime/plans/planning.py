"""Makes one plan in another process, while the caller's steps go on."""

from __future__ import annotations

from threadcast.core import Plan
from threadcast.core.errors import ExecutionError, InvalidInput
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies import Problem


class Planning:
    """Starts a process that makes a plan for `problem`; `result` returns the plan. `close` ends the process.

    In the `background` the process uses only CPU time that no other process wants.
    """

    def __init__(self, problem: Problem, *, background: bool = False) -> None:
        self._planner = PlannerProcess(background=background)
        self._planner.ask(problem)
        self._plan: Plan | None = None

    @property
    def process(self) -> int:
        """The id of the planner's process."""
        return self._planner.pid

    def result(self) -> Plan | None:
        """Return the plan; None while it is being made. ExecutionError where planning failed."""
        if self._plan is None:
            try:
                self._plan = self._planner.result()
            except InvalidInput as error:
                raise ExecutionError(f"planning failed: {error}") from error
        return self._plan

    def close(self) -> None:
        """End the process; closing again does nothing."""
        self._planner.close()
