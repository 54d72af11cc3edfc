"""What every engine is: one captured step, run again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from threadcast.capture.capture import Captured
from threadcast.core import Core, Machine, Plan, Trace


class Engine(ABC):
    """Runs a captured program on pinned teams; `with` closes it.

    Write the abstract methods; all of them may be called from any thread. What is promised: a run gives what
    `Captured.run` gives on the same inputs and random state. Runs of one engine, and of engines that share teams,
    follow one another. When an operator raises, no further op starts, those under way finish, all values of the step
    are freed, the same exception is raised with its traceback, and the next run works; what the step had
    written by then (parameters, running statistics) stays written. Teams sleep between runs. They end at `close`, when
    the engine is garbage, and when the interpreter exits. After `close`, and in a forked child, which has none of
    the threads, a run raises ExecutionError.
    """

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Any:
        """Run one step on `inputs`, as `Captured.bind` gives them, and return what the callable returned."""

    @abstractmethod
    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        """Run one step and also return when each op ran, in seconds from the start of the step."""

    @abstractmethod
    def rest(self) -> None:
        """End idle OpenMP workers until the next run: they slow down the steps of others (`threads.openmp`)."""

    @abstractmethod
    def close(self) -> None:
        """Wait for a run under way and end what the engine has started; closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PlanEngine(Engine):
    """An engine that replays a plan, and can go on by another one."""

    plan: Plan
    captured: Captured

    @abstractmethod
    def prepare(self, plan: Plan, machine: Machine) -> None:
        """Prepare what `change` to this plan needs, so that the change itself is quick. From any thread."""

    @abstractmethod
    def change(self, plan: Plan, machine: Machine, cores: Sequence[Core]) -> None:
        """Continue with `plan`, made for `machine`, on `cores` in place of that machine's cores, one for one in order.

        From any thread. The native engine changes a step under way at the next operator boundary, the Python engine
        changes before its next step; results are the same. Keep the plan alive as long as the engine, which tells plans
        apart by identity.
        """
