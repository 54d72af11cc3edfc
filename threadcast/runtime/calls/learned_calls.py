"""What calls of an optimised model and calls of a graph have in common: what runs each kind, and on which cores.

Calls of a new kind are timed in eager PyTorch, then captured; the next ones measure and compare (`Tuning`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any

from torch.utils._pytree import tree_leaves

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.optimizers import OptimizerRefused
from threadcast.capture.graph.recorder import REFUSALS
from threadcast.capture.guards.function_caches import CacheFilled
from threadcast.capture.guards.module_values import ModuleChanged
from threadcast.capture.guards.one_capture import NoTurn, one_capture
from threadcast.capture.guards.printing import Said
from threadcast.core import Core, Machine
from threadcast.core.errors import CaptureError
from threadcast.core.settings import Settings
from threadcast.runtime.calls.fallback import FIRST_CALL, Fallback, FirstCall, Told, UpdateApart
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.result_layout import ResultLayout
from threadcast.runtime.calls.shared_learning import planner_for
from threadcast.runtime.calls.short import ShortCalls
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.calls.table import MOST_KINDS, CallTable, Runner
from threadcast.runtime.check.shadow import Shadowed, verified_step
from threadcast.runtime.plans.model_cores import ModelCores
from threadcast.runtime.plans.model_format import GIVEN_ONLY, ModelFormat
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_forecasts import store_of
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.planning import Planner
from threadcast.runtime.tuner.report import Report
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching.model import Watch
from threadcast.threads.forks import forks
from threadcast.threads.garbage import without_garbage_collection
from threadcast.threads.this_process import this_process

_logger = logging.getLogger("threadcast")


class LearnedCalls:
    """Calls that are learned as they come, within a budget, on at most so many cores of a machine.

    Subclasses look at a call and find its kind. Here is what is known of the kinds: what runs each (`CallTable`), or
    how it is found out. All `Tuning`s that are made share a planner, what their steps tell the store, and the plans of
    other kinds in the table, which may fit. `watch` is renewed after each capture.
    """

    _after_first = True
    """Whether what cannot be captured before its first call is captured after it."""

    def __init__(
        self, spec: CallSpec, machine: Machine, settings: Settings, budget: Budget, *, model_format: ModelFormat,
        watch: Watch, most: int | None, fuse: bool, verify_every: int, told: Told,
    ) -> None:  # fmt: skip
        self._spec, self._format, self._watch, self._told = spec, model_format, watch, told
        self._fuse, self._verify_every, self._folder = fuse, verify_every, settings["engine.plans"]
        self._store = store_of(settings)
        self._feedback: StepFeedback | None = None
        self._table = CallTable(settings["engine.most_bytes"])
        self._short = ShortCalls(settings["engine.least_step_us"] * 1e-6)
        self._budget = budget
        self._looking_s = 0.0
        """About the fewest seconds that recent looks at a call took, to find what runs it."""
        self._capture_s = 0.0
        """Seconds that the last capture took."""
        self._calls = 0
        """Number of calls that a `Tuning` ran, counted only where some of them are verified."""
        self._awaited: CallKind | None = None
        """The kind of the next call where that is timed by `_short`."""
        self._changing: set[Hashable] = set()
        """Kinds of arguments that could not be captured before their first call, and have been called since."""
        self._changes: Hashable | None = None
        """The kind of arguments that is to be captured after PyTorch's default has run its first call."""
        self.machine = machine
        """The cores on which calls are measured."""
        self._lock, self._forks = RLock(), forks.number
        self.cores = ModelCores(machine, self._resized, this_process().cores, most=most)
        """The cores that calls have now."""
        this_process().steps.ask_learning(self._learning)

    @property
    def title(self) -> str:
        """What is run, for people."""
        return self._spec.title

    @property
    def reports(self) -> list[Report]:
        """One report for each kind of calls: what runs it and why. In order of first use."""
        return [one.report for one in self._table]

    def _learning(self) -> str:
        """What is still being learned, in one line; empty where nothing is. May be called from any thread."""
        kinds = sum(one.report.measuring for one in self._table)
        return f"{self.title}: measuring{f' {kinds} kinds of calls' if kinds > 1 else ''}" if kinds else ""

    @property
    def _planner(self) -> Planner:
        """What makes plans for these cores; other functions of the process share it."""
        return planner_for(self.machine)

    @property
    def _shadowed(self) -> Shadowed:
        """A call in eager PyTorch in the format as given, to compare with."""
        known = self._spec.shadowed
        return replace(known, eager=self._format.reference(known.eager), trace=partial(known.trace, self._format))

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
        """Close all graphs, and end what tells the store of steps; later calls are captured anew."""
        self._table.close()
        if self._feedback is not None:
            self._feedback.close()
            self._feedback = None

    def _begun(self, kind: CallKind, arguments: tuple[Any, ...], *, now: bool = False) -> Runner | FirstCall:
        """Capture a call whose kind nothing runs yet, and return what runs its kind from now on.

        Without `now` the first calls of a kind run in eager PyTorch: those that are to be timed are `_awaited`.
        """
        began_s, captured_s, part = time.perf_counter(), self._captured_s, self._budget.part()
        may_capture = captured_s is None or part.allows(captured_s)
        new = self._short.wants(kind, captured_s=None if captured_s is None else captured_s * self._patience) and (
            kind in self._short.kinds or not self._plans.knows(self._named(kind))
        )
        if not now and (new or not may_capture):
            self._awaited = kind
            return FIRST_CALL
        if (reason := self._short.why_left_alone(kind)) is not None:
            runner: Runner | FirstCall = Fallback(reason, short=True)
        else:
            try:
                with one_capture(wait_s=None if now or self._budget.unlimited else 0.0):
                    runner = self._captured(kind, arguments, part)
            except NoTurn:  # other threads capture
                return FIRST_CALL
        if not isinstance(runner, FirstCall):
            self._table.add(kind, runner)
        if isinstance(runner, Tuning):
            self.cores.pass_to(runner.resize)
        else:
            self._budget.charge(time.perf_counter() - began_s)
        return runner

    @property
    def _captured_s(self) -> float | None:
        """Seconds that it took to capture the last kind, 0 where any time may be spent; None where none was."""
        if not len(self._table):
            return None
        return 0.0 if self._budget.unlimited else self._capture_s

    @property
    def _patience(self) -> float:
        """How many times as long as a capture a further kind's calls take first: twice as many for each left alone."""
        return 2.0 ** sum(tuning.leaves_alone(math.inf) for tuning in self._table.tunings)

    def _captured(self, kind: CallKind, arguments: tuple[Any, ...], budget: Budget) -> Runner | FirstCall:
        """Capture a call, and return what finds the fastest way to run calls of its kind, or what runs them instead.

        UpdateApart where only the optimizer's part cannot be captured.
        """
        spec, model_format, given = self._spec, self._format, MemoryFormat.AS_GIVEN

        def capture(memory_format: MemoryFormat) -> Captured:
            stands_in = {id(one) for one in (*self._watch.model.parameters(), *self._watch.model.buffers())}
            if any(id(leaf) not in stands_in for leaf in held):
                raise CaptureError("cannot capture: an argument is a tensor that code also reads as a value of its own")
            captured = self._graph_of(arguments, memory_format)
            return captured if layout is None or memory_format is given else layout.restored(captured)

        if self._feedback is None and self._store is not None and spec.gives_back:
            self._feedback = StepFeedback(self._store, self.machine)
        held = [leaf for leaf in tree_leaves(arguments) if -id(leaf) in self._watch.held]
        formats = GIVEN_ONLY if held else model_format.worth_trying(arguments)
        if formats != GIVEN_ONLY and (why := model_format.why_fixed()) is not None:
            _logger.info("%s: it runs in the memory format as given only: %s", spec.title, why)
            formats = GIVEN_ONLY
        in_one = formats == GIVEN_ONLY or spec.shadowed.optimizer is not None  # a training step returns a loss
        layout = None if in_one else ResultLayout(model_format)
        eager = spec.shadowed.eager if layout is None else layout.eager(spec.shadowed.eager)
        try:
            only = capture(given) if formats == GIVEN_ONLY else None
            return Tuning(
                eager,
                capture if only is None else lambda _: only,  # must not hold the arguments of a backward pass
                model_format,
                formats,
                self.machine,
                call=self._named(kind),
                plans=self._plans,
                backends=spec.backends(len(self.machine), self.cores.chosen) if kind.autocast is None else None,
                fuse=self._fuse,
                checked=replace(self._shadowed, eager=model_format.reference(eager)),
                store=self._store,
                feedback=self._feedback,
                like=[plan for tuning in reversed(self._table.tunings) for plan in tuning.plans],
                budget=budget,
                eager_s=self._short.take(kind),
                planner=self._planner,
                title=spec.title,
                looking_s=lambda: self._looking_s,
            )
        except NoTurn:
            raise
        except CaptureError as error:
            return self._not_captured(kind, error)

    def _graph_of(self, arguments: tuple[Any, ...], memory_format: MemoryFormat) -> Captured:
        self._format.set(memory_format)
        with one_capture(), without_garbage_collection():
            began_s = time.perf_counter()
            captured = self._spec.capture(arguments, self._format)
            self._capture_s = time.perf_counter() - began_s
        self._watch.renew()  # capturing makes an optimizer's missing state
        return captured

    def _not_captured(self, kind: CallKind, error: CaptureError) -> Fallback | FirstCall:
        """What runs a kind of calls that cannot be captured. UpdateApart where only the optimizer's part cannot."""
        if isinstance(error, OptimizerRefused):
            raise UpdateApart(str(error)) from error
        first = self._after_first and kind.arguments not in self._changing
        if first and isinstance(error, ModuleChanged | CacheFilled | Said):
            self._changes = kind.arguments
            return FIRST_CALL
        if isinstance(error, ModuleChanged):
            self._watch.set_by_calls(str(error))
        by_caller = error.__cause__ is not None and not isinstance(error.__cause__, REFUSALS)  # as in eager PyTorch
        return Fallback(str(error) if by_caller else f"{error}{self._spec.breaks}")

    def _first_call(self, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call by eager PyTorch of which nothing else runs the kind yet, and time it where that is awaited.

        The capture of its kind may have to come after it.
        """
        if self._awaited is not None:
            awaited, self._awaited = self._awaited, None
            return self._timed(awaited, run, arguments)
        if self._changes is not None:
            if len(self._changing) >= MOST_KINDS:
                self._changing.clear()
            self._changing.add(self._changes)
            self._changes = None
        return run(*arguments)

    def _timed(self, kind: CallKind | None, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call by eager PyTorch, and note how long calls of its kind take."""
        beside, began_s = not self._planner.free, time.perf_counter()
        result = run(*arguments) if kind is None else self.beside_a_plan(run, *arguments)
        seconds = time.perf_counter() - began_s
        if kind is not None:
            self._short.ran(kind, None if beside else seconds)
        self._budget.ran_eager(seconds, beside=beside)
        return result

    def beside_a_plan(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call by eager PyTorch, and leave a core to the process that makes a plan, if one is being made."""
        return self._planner.leaving_a_core(run, *arguments) if self._planner.works else run(*arguments)

    def _verified(self, tuning: Tuning, arguments: tuple[Any, ...]) -> Any:
        """Run a call, and every so many calls in eager PyTorch too; WrongResult where the results differ."""
        self._calls += 1
        if self._calls % self._verify_every:
            return tuning(*arguments)
        if (reason := self._shadowed.too_large(arguments, tuning.captured)) is not None:
            self._told.tell(reason, "threadcast does not verify this call")
            return tuning(*arguments)
        return verified_step(
            self._shadowed, tuning, arguments, tuning.captured, lambda: tuning.ran, lambda: tuning.ran_in_order,
            lambda: tuning.ran_by_pytorch,
        )  # fmt: skip

    @property
    def _plans(self) -> PlanStore:
        among = f"{self._spec.among(self.cores.chosen)}, own operators: {self._fuse}"
        return PlanStore(self._folder, self.machine, among=among)

    def _named(self, kind: CallKind) -> object:
        """What stored plans call calls of this kind."""
        return self._spec.name, kind.arguments, *([] if kind.autocast is None else [str(kind.autocast)])

    def _resized(self, cores: Sequence[Core]) -> None:
        for tuning in self._table.tunings:
            tuning.resize(cores)
