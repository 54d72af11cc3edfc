"""What calls of an optimised model and calls of a graph have in common: what runs each kind, and on which cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

from threadcast.core import Core, Machine
from threadcast.core.settings import Settings
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.shared_learning import planner_for
from threadcast.runtime.calls.short import ShortCalls
from threadcast.runtime.calls.table import CallTable, Runner
from threadcast.runtime.calls.tunings import CallTunings
from threadcast.runtime.plans.model_cores import ModelCores
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.planning import Planner
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.threads.forks import forks
from threadcast.threads.this_process import this_process


class LearnedCalls:
    """Calls that are learned as they come, within a budget, on at most so many cores of a machine.

    Subclasses look at a call and find its kind. Here is what is known of the kinds.
    """

    def __init__(self, machine: Machine, settings: Settings, budget: Budget, *, most: int | None) -> None:
        self._table = CallTable(settings["engine.most_bytes"])
        self._short = ShortCalls(settings["engine.least_step_us"] * 1e-6)
        self._budget = budget
        self.machine = machine
        """The cores on which calls are measured."""
        self._lock, self._forks = RLock(), forks.number
        self.cores = ModelCores(machine, self._resized, this_process().cores, most=most)
        """The cores that calls have now."""

    @property
    def _planner(self) -> Planner:
        """What makes plans for these cores; other functions of the process share it."""
        return planner_for(self.machine)

    def _on_cores_of_now(self, found: Runner | None) -> Runner | None:
        """What runs a call that `found` runs on the cores on which it was measured; None: that has to be found out."""
        if self.cores.whole:
            return found
        other = self._table.on_other_cores(found, self.cores)
        if other is None:
            self._drop_graphs()
            self.machine = self.cores.adopt()
        return other

    def _drop_graphs(self) -> None:
        """Close all graphs; later calls are captured anew."""
        self._table.close()

    def _learned(self, kind: CallKind, runner: Runner) -> None:
        """From now on this runs calls of this kind."""
        self._table.add(kind, runner)
        if isinstance(runner, Tuning):
            self.cores.pass_to(runner.resize)

    def _captured_s(self, tunings: CallTunings) -> float | None:
        """Seconds that it took to capture the last kind, 0 where any time may be spent; None where none was."""
        if not len(self._table):
            return None
        return 0.0 if self._budget.unlimited else tunings.capture_s

    def _timed(self, kind: CallKind, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call by eager PyTorch, and note how long calls of its kind take."""
        beside, began_s = not self._planner.free, time.perf_counter()
        result = self.beside_a_plan(run, *arguments)
        seconds = time.perf_counter() - began_s
        self._short.ran(kind, None if beside else seconds)
        self._budget.ran_eager(seconds, beside=beside)
        return result

    def beside_a_plan(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call by eager PyTorch, and leave a core to the process that makes a plan, if one is being made."""
        return run(*arguments) if self._planner.free else self._planner.beside(run, *arguments)

    def _resized(self, cores: Sequence[Core]) -> None:
        for tuning in self._table.tunings:
            tuning.resize(cores)
