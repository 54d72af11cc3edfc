"""The common part of engines written in Python: they run one step at a time on executors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from threadcast.capture.calls import Call
from threadcast.capture.capture import Captured
from threadcast.core import Machine, Trace
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.engines.executors import Executors
from threadcast.runtime.engines.op_times import OpTimes
from threadcast.runtime.engines.replay import Team
from threadcast.runtime.engines.step import Step


class ExecutorEngine(Engine):
    """Runs steps of `captured` on `executors`; with None it makes executors of its own for `machine`, and closes them.

    All `teams` are made in the constructor; the first of them begins every step. `cores` and `policy` are written into
    traces.
    """

    def __init__(
        self,
        captured: Captured,
        machine: Machine,
        *,
        teams: Sequence[Team],
        executors: Executors | None,
        cores: int,
        policy: str,
    ) -> None:
        self._program, self._graph = captured.program, captured.graph
        self._teams, self._cores, self._policy_name = teams, cores, policy
        self._owned = executors is None
        self._executors = executors or Executors(machine)
        try:
            self._executors.make(teams)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _new_step(self, slots: list[Any], calls: Sequence[Call]) -> Step:
        """Return a step that fills `slots` by `calls`, one call for each op."""

    def run(self, inputs: Sequence[Any]) -> Any:
        return self._run(inputs, self._program.calls)[0]

    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        times = OpTimes(self._graph)
        calls = [times.timed(op, call) for op, call in enumerate(self._program.calls)]
        outputs, step = self._run(inputs, calls, times.begin)
        return outputs, times.trace(step.teams, cores=self._cores, policy=self._policy_name)

    def rest(self) -> None:
        self._executors.rest()

    def close(self) -> None:
        if self._owned:
            self._executors.close()

    def _run(
        self, inputs: Sequence[Any], calls: Sequence[Call], note_start: Callable[[], None] | None = None
    ) -> tuple[Any, Step]:
        slots = self._program.new_slots(inputs)
        self._executors.check()
        with self._executors.turn:
            self._executors.settle()
            step = self._new_step(slots, calls)
            if note_start is not None:
                note_start()
            if calls:
                step.complete(self._teams[0])
        return self._program.collect(slots), step
