"""The interface of both engines: an engine runs one captured step again and again, by a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from threadcast.capture.graph.captured import Captured
from threadcast.core import Core, Machine, Plan, Trace


class Engine(ABC):
    """Runs a captured program by a plan on teams of pinned threads; `with` closes the engine.

    It can change to another plan and other cores. Subclasses implement the abstract methods, which may be called from
    any thread. All engines keep these promises:

    - A run returns what `Captured.run` returns on the same inputs and random state.
    - Runs of one engine, and of engines that share teams, never overlap: one waits for the other.
    - When an operator raises, no further op starts, running ops finish, all values of the step are freed, and the same
      exception is raised with its traceback. The next run works. What the step has written by then (parameters,
      running statistics) stays written.
    - Teams sleep between runs. Their threads end at `close`, when the engine is garbage-collected, and when the
      interpreter exits.
    - After `close`, and in a forked child, which has none of the threads, a run raises ExecutionError.
    """

    plan: Plan
    captured: Captured

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Any:
        """Run one step on `inputs`, as `Captured.bind` returns them; return the result of the captured callable."""

    @abstractmethod
    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        """Run one step; return its result and a trace of when each op ran, in seconds from the start of the step."""

    @abstractmethod
    def rest(self) -> None:
        """End the engine's idle OpenMP workers until the next run: they slow other steps down (`threads.openmp`)."""

    @abstractmethod
    def close(self) -> None:
        """Wait until a current run ends, then end the engine's threads; closing again does nothing."""

    @abstractmethod
    def prepare(self, plan: Plan, machine: Machine) -> None:
        """Prepare a `change` to this plan, so that the change itself is quick. May be called from any thread."""

    @abstractmethod
    def change(self, plan: Plan, machine: Machine, cores: Sequence[Core]) -> None:
        """Continue with `plan`, which was made for `machine`; core i of that machine is replaced by `cores[i]`.

        May be called from any thread. The native engine changes within a running step, between operators; the Python
        engine changes before its next step. Results are the same. Keep the plan alive as long as the engine, because
        the engine tells plans apart by identity.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
