"""Captures kinds of calls of one model, and makes what finds the fastest way to run each (`Tuning`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils._pytree import tree_leaves

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.optimizers import OptimizerRefused
from threadcast.capture.graph.recorder import REFUSALS
from threadcast.capture.guards.function_caches import CacheFilled
from threadcast.capture.guards.module_values import ModuleChanged
from threadcast.capture.guards.one_capture import NoTurn, one_capture
from threadcast.capture.guards.printing import Said
from threadcast.core import Machine
from threadcast.core.errors import CaptureError
from threadcast.core.settings import Settings
from threadcast.runtime.calls.fallback import FIRST_CALL, Fallback, FirstCall, UpdateApart
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.result_layout import ResultLayout
from threadcast.runtime.calls.shared_learning import planner_for
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.calls.table import MOST_KINDS, CallTable
from threadcast.runtime.plans.model_format import GIVEN_ONLY, ModelFormat
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_forecasts import store_of
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching.model import Watch
from threadcast.threads.garbage import without_garbage_collection

_logger = logging.getLogger("threadcast")


class CallTunings:
    """Makes a `Tuning` for a kind of calls of one model, or says why PyTorch runs them.

    All that it makes share a planner, what their steps tell the store, and the plans of other kinds in `table`, which
    may fit. `model_format` is that of the model, and `watch` is renewed after each capture.
    """

    def __init__(
        self, spec: CallSpec, settings: Settings, *, model_format: ModelFormat, watch: Watch,
        table: CallTable, fuse: bool, after_first: bool = True,
    ) -> None:  # fmt: skip
        self._spec, self._format, self._watch, self._table = spec, model_format, watch, table
        self._after_first = after_first
        """Whether what cannot be captured before its first call is captured after it."""
        self.capture_s = 0.0
        """Seconds that the last capture took."""
        self._fuse, self._folder = fuse, settings["engine.plans"]
        self._store = store_of(settings)
        self._feedback: StepFeedback | None = None
        self._changing: set[Hashable] = set()
        """Kinds of arguments that could not be captured before their first call, and have been called since."""
        self._awaited: Hashable | None = None
        """The kind of arguments that is to be captured after PyTorch's default has run its first call."""

    def make(
        self, arguments: tuple[Any, ...], kind: CallKind, machine: Machine, *,
        chosen: Sequence[int] | None, budget: Budget, eager_s: Sequence[float], looking_s: Callable[[], float],
    ) -> Tuning | Fallback | FirstCall:  # fmt: skip
        """Capture a call, and return what finds the fastest way to run calls of its kind, or what runs them instead.

        They are measured on the cores of `machine`. `chosen` are the CPUs that a user has asked for, `looking_s()` the
        seconds that it takes to find what runs a call. UpdateApart where only the optimizer's part cannot be captured,
        NoTurn where other threads capture.
        """
        spec, model_format, given = self._spec, self._format, MemoryFormat.AS_GIVEN

        def capture(memory_format: MemoryFormat) -> Captured:
            stands_in = {id(one) for one in (*self._watch.model.parameters(), *self._watch.model.buffers())}
            if any(id(leaf) not in stands_in for leaf in held):
                raise CaptureError("cannot capture: an argument is a tensor that code also reads as a value of its own")
            captured = self._captured(arguments, memory_format)
            return captured if layout is None or memory_format is given else layout.restored(captured)

        if self._feedback is None and self._store is not None and spec.gives_back:
            self._feedback = StepFeedback(self._store, machine)
        held = [leaf for leaf in tree_leaves(arguments) if -id(leaf) in self._watch.held]
        formats = GIVEN_ONLY if held else model_format.worth_trying(arguments)
        if formats != GIVEN_ONLY and (why := model_format.why_fixed()) is not None:
            _logger.info("%s: it runs in the memory format as given only: %s", spec.title, why)
            formats = GIVEN_ONLY
        in_one = formats == GIVEN_ONLY or spec.shadowed.optimizer is not None  # a training step returns a loss
        layout = None if in_one else ResultLayout(model_format)
        eager = spec.shadowed.eager if layout is None else layout.eager(spec.shadowed.eager)
        checked = replace(
            spec.shadowed, eager=model_format.reference(eager), trace=partial(spec.shadowed.trace, model_format)
        )
        try:
            only = capture(given) if formats == GIVEN_ONLY else None
            return Tuning(
                eager,
                capture if only is None else lambda _: only,  # must not hold the arguments of a backward pass
                model_format,
                formats,
                machine,
                call=self._call(kind),
                plans=self._plans(machine, chosen),
                backends=spec.backends(len(machine), chosen) if kind.autocast is None else None,
                fuse=self._fuse,
                checked=checked,
                store=self._store,
                feedback=self._feedback,
                like=[plan for tuning in reversed(self._table.tunings) for plan in tuning.plans],
                budget=budget,
                eager_s=eager_s,
                planner=planner_for(machine),
                title=spec.title,
                looking_s=looking_s,
            )
        except NoTurn:
            raise
        except CaptureError as error:
            return self._not_captured(kind, error)

    def knows(self, kind: CallKind, machine: Machine, chosen: Sequence[int] | None) -> bool:
        """Return whether a plan is stored for calls of this kind on these cores."""
        return self._plans(machine, chosen).knows(self._call(kind))

    def _plans(self, machine: Machine, chosen: Sequence[int] | None) -> PlanStore:
        among = f"{self._spec.among(chosen)}, own operators: {self._fuse}"
        return PlanStore(self._folder, machine, among=among)

    def _call(self, kind: CallKind) -> object:
        return self._spec.name, kind.arguments, *([] if kind.autocast is None else [str(kind.autocast)])

    def first_call_runs(self) -> None:
        """Take note that PyTorch runs a first call now, which the capture of its kind may have to come after."""
        if self._awaited is not None:
            if len(self._changing) >= MOST_KINDS:
                self._changing.clear()
            self._changing.add(self._awaited)
            self._awaited = None

    def close(self) -> None:
        """End what tells the store of steps; a later call begins anew."""
        if self._feedback is not None:
            self._feedback.close()
            self._feedback = None

    def _not_captured(self, kind: CallKind, error: CaptureError) -> Fallback | FirstCall:
        """What runs a kind of calls that cannot be captured. UpdateApart where only the optimizer's part cannot."""
        if isinstance(error, OptimizerRefused):
            raise UpdateApart(str(error)) from error
        first = self._after_first and kind.arguments not in self._changing
        if first and isinstance(error, ModuleChanged | CacheFilled | Said):
            self._awaited = kind.arguments
            return FIRST_CALL
        if isinstance(error, ModuleChanged):
            self._watch.set_by_calls(str(error))
        by_caller = error.__cause__ is not None and not isinstance(error.__cause__, REFUSALS)  # as in eager PyTorch
        return Fallback(str(error) if by_caller else f"{error}{self._spec.breaks}")

    def _captured(self, arguments: tuple[Any, ...], memory_format: MemoryFormat) -> Captured:
        model_format = self._format
        model_format.set(memory_format)
        with one_capture(), without_garbage_collection():
            began_s = time.perf_counter()
            captured = self._spec.capture(arguments, model_format)
            self.capture_s = time.perf_counter() - began_s
        self._watch.renew()  # capturing makes an optimizer's missing state
        return captured
