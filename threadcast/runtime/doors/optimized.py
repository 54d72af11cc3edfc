"""A function or training step that measures in its caller's own calls what runs it fastest, and runs it that way."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any, NamedTuple

from torch import nn

from threadcast.capture.guards.libraries import own_classes
from threadcast.capture.guards.unsupported import unsupported
from threadcast.core import Machine
from threadcast.core.settings import Settings
from threadcast.runtime.calls.conditions import CallConditions, why_transformed
from threadcast.runtime.calls.fallback import (
    BREAKS,
    FIRST_CALL,
    FORKED,
    ONCE,
    WITHIN,
    Fallback,
    FirstCall,
    Told,
    UpdateApart,
)  # fmt: skip
from threadcast.runtime.calls.kinds import CallKind, flattened, kind_of
from threadcast.runtime.calls.learned_calls import LearnedCalls
from threadcast.runtime.calls.left_alone import CallsLeftAlone
from threadcast.runtime.calls.shared_learning import budget
from threadcast.runtime.calls.short import NEW_IN_A_ROW
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.calls.table import OTHER_NUMBERS, Runner
from threadcast.runtime.doors.traced_step import TracedStep, ran_by_plan, traced_step
from threadcast.runtime.engine.native.library import in_step
from threadcast.runtime.plans.model_cores import ModelCores, core_choice
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.report import Report
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching.model import Observation, Watch
from threadcast.threads.forks import forks
from threadcast.threads.this_process import this_process

_logger = logging.getLogger("threadcast")

LOOKING_GROWTH = 1.1
"""How many times as long as the shortest of recent looks at a call the next may take, to count as the shortest."""


class _Same(NamedTuple):
    """What was found to run a call, and what of the call decided it."""

    kind: CallKind
    observed: Observation
    runs_in: MemoryFormat
    runner: Tuning

    def holds(self, kind: CallKind, observed: Observation, model_format: ModelFormat, cores: ModelCores) -> bool:
        """Return whether the same runs a call of this kind, and nothing is found out in it."""
        same = observed is self.observed and model_format.current is self.runs_in and cores.whole
        return same and kind == self.kind and self.runner.passes


class Optimized(LearnedCalls):
    """A callable that runs a call in eager PyTorch, or by a faster equivalent with the same effect on the model.

    Each call is looked at: whether PyTorch must run it whatever it is (`CallConditions`), of which kind it is, and what
    runs its kind (`CallTable`). Calls of a new kind are timed in eager PyTorch, then captured (`LearnedCalls`). The
    next ones measure and compare (`Tuning`); each of them does all of the caller's step.
    """

    def __init__(self, spec: CallSpec, machine: Machine) -> None:
        self._default = spec.shadowed.eager
        (model, optimizer), functions = spec.watched, spec.functions
        self._last: Runner | FirstCall | None = None
        """What ran the last call."""
        self._unsupported = unsupported(model)
        if self._unsupported is not None:
            model = optimizer = None
            functions = ()
        settings = Settings.read()
        super().__init__(
            spec, machine, settings, budget(settings["engine.tuning_share"]).part(),
            model_format=ModelFormat(
                model, spec.reordered or optimizer, changed=self._take_format, wanted=spec.formats
            ),
            watch=Watch(model or nn.Module(), optimizer, functions=functions), most=spec.most,
            fuse=settings["engine.fuse"], verify_every=settings["engine.verify_every"], told=Told(),
        )  # fmt: skip
        self._conditions = CallConditions(self._watch, trains=spec.shadowed.optimizer is not None)
        self._included = False
        """Whether it has just come to be watched what classes of a call's arguments read."""
        self._left_alone = CallsLeftAlone()
        self._looking_s = math.inf
        self._same: _Same | None = None
        """What was found last."""
        self._counted: Callable[[], AbstractContextManager[None]] = (
            this_process().steps.step if spec.is_step else nullcontext
        )
        self._cores_left = False
        """Whether it was closed and not called since, so that other models may have the cores that it was to use."""
        if spec.most is not None:
            core_choice().add(self.cores)

    @property
    def forked(self) -> bool:
        """Whether this is in a fork of a process that called it, without its threads, which may have held the lock."""
        return self._forks != forks.number and (self._last is not None or len(self._table) > 0)

    def __call__(self, *arguments: Any) -> Any:
        if self._left_alone.rest:  # PyTorch runs the call, whatever a look would find
            self._left_alone.rest -= 1
            with self._counted():
                return self._default(*arguments)
        if self._forks != forks.number:
            if self.forked:
                self._last = Fallback(FORKED)
                self._told.tell(FORKED)
                self._format.set(MemoryFormat.AS_GIVEN)
                return self._default(*arguments)
            self._forks, self._lock = forks.number, RLock()
        if in_step():  # the memory format stays: another thread may run this model
            self._last = self._last or Fallback(WITHIN)
            return self._default(*arguments)
        as_given = self._format.current is MemoryFormat.AS_GIVEN  # else a change would hide behind that of the format
        if as_given and self._left_alone.left and self._left_alone.has(arguments):
            return self._alone(arguments)
        with self._lock, self._counted():
            self._last, began_s = self._last or FIRST_CALL, time.perf_counter()
            found = self._last = self._found(arguments)
            looking_s = time.perf_counter() - began_s
            self._looking_s = min(looking_s, LOOKING_GROWTH * self._looking_s)
            if self._awaited is not None:
                self._budget.charge(min(looking_s, LOOKING_GROWTH * self._looking_s))
            if isinstance(found, FirstCall):
                return self._first_call(self._as_given, arguments)
            if isinstance(found, Fallback):
                return self._as_before(found, arguments)
            found.begun(began_s)
            result = self._verified(found, arguments) if self._verify_every else found(*arguments)
            if found.left is not None:
                self._told.tell(found.left)
            return result

    @property
    def rests(self) -> bool:
        """Whether PyTorch runs the next call, whatever it is."""
        return self._left_alone.rest > 0

    def prepare(self, *arguments: Any) -> Runner | FirstCall:
        """Return what runs a call with these arguments. The call is captured first if none of its kind was before."""
        if self.forked:
            return Fallback(FORKED)
        self._left_alone.rest = 0
        self._last = self._found(arguments, now=True)
        return self._last

    def _found(self, arguments: tuple[Any, ...], *, now: bool = False) -> Runner | FirstCall:
        """What runs a call. Without `now` the first calls of a kind are timed in eager PyTorch, and not captured."""
        self._awaited = None
        if self._cores_left:
            self._cores_left = False
            core_choice().add(self.cores)
        if self._unsupported is not None:
            return Fallback(self._unsupported)
        if (transformed := why_transformed()) is not None:
            return Fallback(transformed)
        leaves, structure = flattened(arguments)
        observed = self._observed()
        if observed.unsteady is not None and not now:
            self._drop_graphs()
        if observed.apart is not None:
            raise UpdateApart(observed.apart)
        if (fallback := self._conditions.why_not_by_graph(leaves, observed, now=now)) is not None:
            return fallback
        looked = kind_of(leaves, structure, self._watch.held, observed.settings)
        if (same := self._same) is not None and same.holds(looked, observed, self._format, self.cores):
            return same.runner
        call = self._table.find_call(looked, leaves)
        if call is None:
            return Fallback(f"{OTHER_NUMBERS}{BREAKS}")
        kind, found = call
        found = self._on_cores_of_now(found)
        runs_in = found.runs_in if isinstance(found, Tuning) else MemoryFormat.AS_GIVEN
        if (why := self._format.why_stays(runs_in, verified=self._verify_every > 0)) is not None:
            self._keep_format(why)
            return self._found(arguments, now=now)
        if isinstance(found, Tuning) and found.leaves_alone(self._looking_s):
            varies = len(self._table) > 1 and all(one.leaves_alone(self._looking_s) for one in self._table.tunings)
            looking = self._looking_s / (found.eager_s or math.inf)
            self._left_alone.after(arguments, varies=varies, looking=looking)
        if found is None:
            return self._begun(kind, arguments, now=now)
        if isinstance(found, Fallback) and found.short:
            self._left_alone.after(arguments, short=True)
        self._same = None
        if isinstance(found, Tuning) and runs_in is not None and found.captured.reads is None:
            self._same = None if self._verify_every else _Same(looked, observed, runs_in, found)
        return found

    def _begun(self, kind: CallKind, arguments: tuple[Any, ...], *, now: bool = False) -> Runner | FirstCall:
        if not (now or self._watch.steady):
            return FIRST_CALL
        found = super()._begun(kind, arguments, now=now)
        if self._included:  # what these classes read may belong to the kind
            self._included = False
            return self._found(arguments, now=now)
        if self._awaited is None:
            return found
        if self._short.new_in_a_row < NEW_IN_A_ROW:
            if self._short.leaves_alone(kind, self._looking_s):
                looking = self._looking_s / max(1e-9, self._short.last_s(kind))
                self._left_alone.after(arguments, varies=True, looking=looking)
            return found
        self._awaited = None
        self._short.ran(kind, 0.0)  # a first call, of which the time does not count
        self._left_alone.after(arguments, varies=True)
        return Fallback(ONCE)

    def _captured(self, kind: CallKind, arguments: tuple[Any, ...], budget: Budget) -> Runner | FirstCall:
        classes = self._watch.others(own_classes(arguments))
        if not classes:
            return super()._captured(kind, arguments, budget)
        if self._watch.make_room(classes):
            self._drop_graphs()
        if (reason := self._watch.include(classes)) is not None:
            return Fallback(reason)
        self._included = not self._watch.others(classes)  # else something else has just changed
        return FIRST_CALL

    def _observed(self) -> Observation:
        """The state of model and optimizer. Where tensors were replaced, drops all graphs, which hold the old ones."""
        observed = self._watch.observe()
        if observed.changed:
            self._drop_graphs()
            self._format.reset()
            observed = self._watch.renewed()
        return observed

    @property
    def reports(self) -> list[Report]:
        """One report for each kind of arguments: what runs it and why. In order of first use."""
        if self._unsupported is not None:
            return [Report.as_default(self._unsupported)]
        found, last = super().reports, self._last
        if isinstance(last, Fallback) and last not in self._table:
            found.append(last.report)  # of what depends on hooks or on a changing value, not on the arguments
        return found or ([] if last is None else [Report()])

    @property
    def learning(self) -> bool:
        """Whether calls of the kind of the last call are still being measured, or backends tried for them.

        True before the first calls of a kind have been timed.
        """
        if self.forked or in_step():
            return False
        return self._last.learning if isinstance(self._last, Tuning) else not isinstance(self._last, Fallback)

    @property
    def tuning(self) -> Tuning | None:
        """What finds out what runs calls of the kind of the last call fastest; None where nothing does."""
        return self._last if isinstance(self._last, Tuning) else None

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Within the context, learning may take any time."""
        if self.forked:
            yield
            return
        with self._budget.without_limit():
            yield

    def traced_step(self) -> TracedStep:
        """Run a traced step by the plan that ran the last call, and restore all that it changes.

        ExecutionError where the last call was not run by a plan; its message says what ran the call.
        """
        with self._lock:
            return traced_step(self._shadowed, ran_by_plan(self._last))

    def put_back(self) -> None:
        """Give the parameters the memory format that they had; the next call may change it again."""
        if self.forked or self._format.current is MemoryFormat.AS_GIVEN:
            return
        with self._lock:  # within a transformation tensors cannot be looked at
            if why_transformed() is None and (why := self._format.why_fixed()) is not None:
                self._keep_format(why)
            self._format.set(MemoryFormat.AS_GIVEN)

    def close(self) -> None:
        """End all threads and restore the memory format that the parameters had. Later calls measure anew."""
        with self._lock:
            self._drop_graphs()
            self._cores_left |= core_choice().remove(self.cores)

    def _drop_graphs(self) -> None:
        super()._drop_graphs()
        self._format.set(MemoryFormat.AS_GIVEN)

    def _take_format(self) -> None:
        """Take the format that was just set for granted; where tensors cannot be looked at, the next call finds it."""
        if why_transformed() is None and not self.forked:
            self._watch.renew()

    def _keep_format(self, reason: str) -> None:
        """Leave tensors as they are from now on; the graphs, which need them in several formats, are dropped."""
        _logger.info("%s: from now on the memory format of the model stays as it is: %s", self.title, reason)
        self._drop_graphs()
        self._format.keep_given()
        self._watch.renew()

    def _alone(self, arguments: tuple[Any, ...]) -> Any:
        """Run a call that needs no closer look, of a model in the given memory format."""
        with self._lock:
            self._left_alone.count()
            if self._left_alone.short:
                return self._default(*arguments)
            with self._counted():
                return self._timed(None, self._default, arguments)

    def _as_before(self, fallback: Fallback, arguments: tuple[Any, ...]) -> Any:
        """Run a call in eager PyTorch. Where no kind of calls is learned, the next ones need no look."""
        self._told.tell(fallback.reason)
        result = self._timed(None, self._as_given, arguments)
        if self._watch.rest:
            self._left_alone.for_changes(self._watch.rest)
        elif not (fallback.short or self._table.tunings) and (fallback.hooks or fallback in self._table):
            self._left_alone.after_same(fallback)
        return result

    def _as_given(self, *arguments: Any) -> Any:
        """Run a call in eager PyTorch in the given memory format."""
        self.put_back()
        return self._default(*arguments)
