"""A function or training step that measures in its caller's own calls what runs it fastest, and runs it that way."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from threadcast.capture.argument_classes import own_classes
from threadcast.capture.capture import Captured
from threadcast.capture.function_caches import CacheFilled
from threadcast.capture.module_values import ModuleChanged, Unwatchable
from threadcast.capture.one_capture import NoTurn, one_capture
from threadcast.capture.optimizers import FirstStepMissing, OptimizerRefused
from threadcast.capture.same_way import takes_the_same_way
from threadcast.capture.sizes import Dynamic
from threadcast.capture.unsupported import Collective, has_cached_weights, may_exchange, unsupported
from threadcast.core import Core, Machine
from threadcast.core.errors import CaptureError, ExecutionError
from threadcast.core.settings import Settings
from threadcast.runtime.autocast import autocast_contexts, keeps_casts
from threadcast.runtime.call_kinds import CallKind, differences, flattened, kind_of
from threadcast.runtime.call_table import MOST_KINDS, CallTable
from threadcast.runtime.calls_left_alone import CallsLeftAlone
from threadcast.runtime.core_choice import core_choice
from threadcast.runtime.engines.native.library import in_step
from threadcast.runtime.fallback import (
    ANOMALIES,
    AUTOCAST_STEP,
    CACHED,
    FIRST_CALL,
    FORKED,
    LONG_AUTOCAST,
    SAVED_BY_HOOKS,
    Fallback,
    FirstCall,
    UpdateApart,
    saves_by_hooks,
    why_no_inputs,
    why_transformed,
)
from threadcast.runtime.model_cores import ModelCores
from threadcast.runtime.number_kinds import OTHER_NUMBERS, NumberKinds
from threadcast.runtime.parts import Divide, Parts
from threadcast.runtime.plans.model_format import ModelFormat, formats_of
from threadcast.runtime.plans.plan_store import NoPlanStore, PlanStore
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_forecasts import store_of
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.remembered import Remembered
from threadcast.runtime.result_layout import ResultLayout
from threadcast.runtime.short_calls import NEW_IN_A_ROW, ShortCalls
from threadcast.runtime.size_families import SizeFamilies, SizeFamily
from threadcast.runtime.traced_step import TracedStep, traced_step
from threadcast.runtime.tuning.contender import Contender, MakeBackends
from threadcast.runtime.tuning.plan_maker import Planner
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.tuning import Tuning
from threadcast.runtime.tuning.warm_up import Allowance, WarmUp
from threadcast.runtime.verification.shadow import Shadowed, shadow_step
from threadcast.runtime.watching.model import Observation, Watch
from threadcast.threads.forks import forks
from threadcast.threads.garbage import without_garbage_collection
from threadcast.threads.this_process import this_process

_logger = logging.getLogger("threadcast")

LOOKING_GROWTH = 1.1
"""How many times as long as the shortest of recent looks at a call the next may take, to count as the shortest."""


class Optimized:
    """A callable that runs a call in eager PyTorch, or by a faster equivalent with the same effect on the model.

    The first calls measure and compare (`Tuning`); each of them does all of the caller's step.

    `shadowed` holds the call in eager PyTorch; its `trace` takes the model's memory format before the call's arguments.
    `capture(arguments, model_format, dynamic)` returns the graph of one call in the current memory format, right for
    all values of the sizes `dynamic`. `watched` are the model and the optimizer whose tensors the graphs hold.
    `functions` are other callables that the graphs have built in, such as a loss. `backends(cores, cpus)` makes
    searches for further contenders for so many cores, on these CPUs only (None: on any); the text `among(cpus)` names
    them. `name` identifies the call in stored plans, for other processes; `title` names it for people. `most` is the
    largest number of cores to use (None: all that the process has). `formats` are the memory formats to try (None: by
    the kinds of layers and arguments); the state of the optimizer `reordered` takes the model's format too (None: of
    the watched one). `divide` makes the call in parts, for what cannot be captured as a whole. Without `is_step` a call
    is a part of a step, which the caller counts. Without `counts` it does not count where models choose cores.
    """

    def __init__(
        self,
        shadowed: Shadowed,
        capture: Callable[[tuple[Any, ...], ModelFormat, Dynamic | None], Captured],
        machine: Machine,
        *,
        name: str,
        title: str,
        watched: tuple[nn.Module | None, Optimizer | None] = (None, None),
        functions: Sequence[Callable[..., Any]] = (),
        backends: Callable[[int, Sequence[int] | None], MakeBackends | None] = lambda *_: None,
        among: Callable[[Sequence[int] | None], str] = lambda _: "",
        most: int | None = None,
        divide: Divide | None = None,
        formats: Sequence[MemoryFormat] | None = None,
        reordered: Optimizer | None = None,
        is_step: bool = True,
        counts: bool = True,
    ) -> None:
        self.machine = machine
        self._default = shadowed.eager
        self._capture, self._backends = capture, backends
        model, optimizer = watched
        self._unsupported = unsupported(model)
        if self._unsupported is not None:
            model = optimizer = None
            functions = ()
        self._model = model
        self._watch = Watch(model or nn.Module(), optimizer, functions=functions)
        self._format = ModelFormat(model, reordered or optimizer, changed=self._take_format)
        self._formats = formats
        reference, trace = partial(self._reference, shadowed.eager), partial(shadowed.trace, self._format)
        self._shadowed = replace(shadowed, eager=reference, trace=trace)
        settings = Settings.read()
        self._table = CallTable(settings["engine.most_bytes"])
        self._families = SizeFamilies()
        self._numbers = NumberKinds()
        self._fuse, self._verify_every = settings["engine.fuse"], settings["engine.verify_every"]
        self._allowance = Allowance(settings["engine.tuning_share"])
        self._capture_s = 0.0
        """Seconds that the last capture took."""
        self._store = store_of(settings)
        self._feedback: StepFeedback | None = None
        self._short = ShortCalls(settings["engine.least_step_us"] * 1e-6)
        self._once = ""
        """How calls differ of which each is the first of its kind, in words."""
        self._timed: CallKind | None = None
        """The kind of the next call where that is timed by `_short`."""
        self._parts = None if divide is None else Parts(
            self._as_given, divide, self._allowance, least_s=settings["engine.least_step_us"] * 1e-6,
            machine=lambda: self.machine, most=most,
        )  # fmt: skip
        self._calls = 0
        """Number of calls that a `Tuning` ran, counted only where `engine.verify_every` asks to verify some of them."""
        self._folder, self._among = settings["engine.plans"], among
        self._name, self._title = name, title
        self._planner = Planner(machine)
        self._left_alone = CallsLeftAlone()
        self._casts = 0, 0
        """The last autocast context around a call, and the versions of the weights at its first call."""
        self._looking_s = float("inf")
        """About the fewest seconds that recent looks at a call took, to find what runs it."""
        self._lock = RLock()
        self._forks = forks.number
        self._warned = Remembered(MOST_KINDS)
        self._changing = Remembered(MOST_KINDS)
        """Kinds of arguments that could not be captured before their first call, and have been called since."""
        self._awaited: Hashable | None = None
        """The kind of arguments that is to be captured after PyTorch's default has run its first call."""
        self._no_turn = False
        """Whether PyTorch runs the last call only because another thread was capturing."""
        self._last: Tuning | Fallback | FirstCall | None = None
        """What ran the last call."""
        self._counted: Callable[[], AbstractContextManager[None]] = (
            this_process().steps.step if is_step else nullcontext
        )
        self._cores_left = False
        """Whether it was closed and not called since, so that other models may have the cores that it was to use."""
        self.cores = ModelCores(
            machine, self._resized, this_process().cores, most=most
        )  # last: cores may change from here on
        if most is not None and counts:
            core_choice().add(self.cores)

    @property
    def forked(self) -> bool:
        """Whether this is in a fork of a process that called it, without its threads, which may have held the lock."""
        return self._forks != forks.number and (self._last is not None or len(self._table) > 0)

    def __call__(self, *arguments: Any) -> Any:
        if self._forks != forks.number:
            if self.forked:
                self._warn(FORKED)
                self._format.set(MemoryFormat.AS_GIVEN)
                return self._default(*arguments)
            self._forks, self._lock = forks.number, RLock()
        if in_step():  # the memory format stays: another thread may run this model
            return self._default(*arguments)
        if self._left_alone.has(arguments) and not torch.is_autocast_enabled("cpu"):
            return self._alone(arguments)
        with self._lock, self._counted():
            began_s = time.perf_counter()
            found = self._last = self._found(arguments)
            looking_s = time.perf_counter() - began_s
            self._looking_s = min(looking_s, LOOKING_GROWTH * self._looking_s)
            if self._timed is not None:
                self._allowance.charge(min(looking_s, LOOKING_GROWTH * self._looking_s))
                return self._timed_eager(self._timed, arguments)
            if isinstance(found, FirstCall):
                if self._awaited is not None:
                    self._changing.add(self._awaited)
                    self._awaited = None
                return self._as_given(*arguments)
            if not isinstance(found, Tuning):
                return self._as_before(found, arguments)
            return self._verified(found, arguments) if self._verify_every else found(*arguments)

    def prepare(self, *arguments: Any) -> Tuning | Fallback | FirstCall:
        """Return what runs a call with these arguments. The call is captured first if none of its kind was before."""
        if self.forked:
            return Fallback(FORKED)
        return self._found(arguments, now=True)

    def _found(self, arguments: tuple[Any, ...], *, now: bool = False) -> Tuning | Fallback | FirstCall:
        """What runs a call. Without `now` the first calls of a kind are timed in eager PyTorch, and not captured."""
        self._timed, self._no_turn = None, False
        if self._cores_left:
            self._cores_left = False
            core_choice().add(self.cores)
        if self._unsupported is not None:
            return Fallback(self._unsupported)
        if (transformed := why_transformed()) is not None:
            return Fallback(transformed)
        leaves, structure = flattened(arguments)
        observed = self._observed()
        if observed.apart is not None:
            raise UpdateApart(observed.apart)
        reason = why_no_inputs(leaves)
        divisible = reason is None and observed.watchable
        if reason is None and keeps_casts() and (reason := self._why_other_casts(now=now)) is not None:
            divisible = False
        reason = reason or observed.unsteady
        if self._shadowed.optimizer is not None and not torch.is_grad_enabled():
            reason, divisible = "gradients are switched off, by torch.no_grad() or torch.inference_mode()", False
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():  # models may take gradients, too
            reason, divisible = ANOMALIES, False
        if has_cached_weights():
            reason, divisible = CACHED, False
        if torch.is_grad_enabled() and saves_by_hooks():
            reason, divisible = SAVED_BY_HOOKS, False
        if reason is None and observed.hooked is not None:
            reason = f"there are hooks on {observed.hooked}, which a captured step does not call"
        if reason is not None:
            return Fallback(reason, divisible)
        kind = kind_of(leaves, structure, self._watch.storages, observed.settings)
        arguments_kind, numbered = kind, self._numbers.kind_of(kind, leaves)
        if numbered is None:
            return Fallback(OTHER_NUMBERS, divisible=True)
        kind = numbered
        found, family = self._table.find(kind), None
        if found is None and kind is arguments_kind:
            family = self._families.of(kind, leaves)
            if family is not None:
                kind = family.kind_of(leaves)
                found = self._table.find(kind)
        if not self.cores.whole:
            other = self._with_other_cores(found)
            if other is not None:
                return other
            found = None
        if self._changes_format(found) and (why := self._format.why_fixed()) is not None:
            self._keep_format(why)
            return self._found(arguments, now=now)
        if isinstance(found, Tuning) and found.leaves_alone(self._looking_s, waiting=family is not None):
            (self._left_alone.after_fastest if family is None else self._left_alone.after_varying)(arguments)
        if family is not None and not ((isinstance(found, Tuning) and found.settled) or family.near(kind, leaves)):
            self._timed = kind
            return FIRST_CALL
        if found is not None:
            if isinstance(found, Fallback) and found.short:
                self._left_alone.after_short(arguments)
            return found
        further = len(self._table) > 0
        may_capture = not further or (family is not None and family.is_captured) or self._may_capture()
        if not now and (self._short.wants(kind, further=further) or not may_capture):
            if self._short.new_in_a_row == NEW_IN_A_ROW:
                self._once = f"kinds of calls that came once: {differences(kind, self._table.kinds)}"
            if self._short.new_in_a_row >= NEW_IN_A_ROW:
                self._short.ran(kind, 0.0)  # a first call, of which the time does not count
                return Fallback(self._once, divisible=True)
            self._timed = kind
            return FIRST_CALL
        if (reason := self._short.why_left_alone(kind)) is not None:
            tuning: Tuning | Fallback | FirstCall = Fallback(reason, short=True)
        elif not (classes := self._watch.others(own_classes(arguments))):
            tuning = self._tuning(arguments, kind, family, now=now)
        elif not self._watch.has_room_for(classes):
            self._drop_graphs()
            self._watch.forget_classes()
            return self._found(arguments, now=now)
        elif (reason := self._watch.include(classes)) is not None:
            tuning = Fallback(reason)
        elif self._watch.others(classes):  # something else has just changed
            return FIRST_CALL
        else:
            return self._found(arguments, now=now)  # what they read may belong to the kind
        if not isinstance(tuning, FirstCall):
            for left in self._table.add(kind, tuning):
                self._numbers.dropped(left)
        if isinstance(tuning, Tuning):
            self._numbers.captured(arguments_kind, kind, tuning.captured.reads)
            self.cores.pass_to(tuning.resize)
        return tuning

    def _why_other_casts(self, *, now: bool) -> str | None:
        """Why a graph would cast the weights at another time than eager PyTorch does; None where both are equal.

        In one autocast context PyTorch casts a weight once. Graphs cast in each call, and leave no cast to later calls.
        """
        if self._shadowed.optimizer is not None:
            return AUTOCAST_STEP
        if now:
            return None
        context, versions = autocast_contexts().number(), self._watch.versions
        if self._casts[0] != context:
            self._casts = context, versions
        return None if self._casts[1] == versions else LONG_AUTOCAST

    def _alone(self, arguments: tuple[Any, ...]) -> Any:
        """Run a call that needs no closer look."""
        with self._lock:
            self._left_alone.count()
            if self._left_alone.short:
                return self._as_given(*arguments)
            with self._counted():
                began_s = time.perf_counter()
                result = self._as_given(*arguments)
                self._allowance.ran_eager(time.perf_counter() - began_s)
                return result

    @property
    def reports(self) -> list[Report]:
        """One report for each kind of arguments: what runs it and why. In order of first use."""
        if self._unsupported is not None:
            return [Report.as_default(self._unsupported)]
        found = [self._report(runner) for runner in self._table]
        last = self._last
        parts = self._parts_for(last) if isinstance(last, Fallback) and last not in self._table else None
        if isinstance(last, Fallback) and parts is not None and parts.begun:
            found.append(self._report(last))  # of what depends on hooks or on a changing value, not on the arguments
        return found

    @property
    def fastest(self) -> list[Contender]:
        """The fastest contender of the last comparison, one for each kind of arguments that could be captured."""
        return [tuning.fastest for tuning in self._table.tunings]

    @property
    def learning(self) -> bool:
        """Whether calls of the kind of the last call are still being measured, or backends tried for them."""
        if self.forked:
            return False
        if isinstance(self._last, Fallback):
            parts = self._parts_for(self._last)
            return parts is not None and parts.learning
        return self._no_turn or (isinstance(self._last, Tuning) and self._last.learning)

    def wait(self, timeout_s: float) -> None:
        """Leave the cores to what learns beside the calls of the kind of the last call; see `Tuning.wait`."""
        if isinstance(self._last, Tuning):
            self._last.wait(timeout_s)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Within the context, learning may take any time."""
        if self.forked:
            yield
            return
        with self._lock:
            share, self._allowance.share = self._allowance.share, 1.0
        try:
            with nullcontext() if self._parts is None else self._parts.hurry():
                yield
        finally:
            self._allowance.share = share

    def traced_step(self) -> TracedStep:
        """Run a traced step by the plan that ran the last call, and restore all that it changes.

        ExecutionError where the last call was not run by a plan; its message says what ran the call.
        """
        with self._lock:
            if not isinstance(self._last, Tuning):
                why = self._last.reason if isinstance(self._last, Fallback) else "it must be called before"
                raise ExecutionError(f"no plan runs: {why}")
            ran = self._last.ran
            if ran is None:
                raise ExecutionError(f"no plan ran the last call, but: {self._last.report.runs}")
            return traced_step(self._shadowed, ran)

    def close(self) -> None:
        """End all threads and restore the memory format that the parameters had. Later calls measure anew."""
        with self._lock:
            self._end_threads()
            self._cores_left |= core_choice().remove(self.cores)

    def _end_threads(self) -> None:
        self._drop_graphs()
        if self._parts is not None:
            self._parts.close()

    def _drop_graphs(self) -> None:
        """Close all graphs of whole calls. Parts stay: `torch.compile` itself notices what has changed."""
        self._table.close()
        self._families.clear()
        self._numbers.clear()
        if self._feedback is not None:
            self._feedback.close()
            self._feedback = None
        self._format.set(MemoryFormat.AS_GIVEN)

    def _timed_eager(self, kind: CallKind, arguments: tuple[Any, ...]) -> Any:
        """Run a call in eager PyTorch, and time it."""
        self._timed = None
        beside, began_s = not self._planner.free, time.perf_counter()
        result = self._planner.beside(self._as_given, *arguments) if beside else self._as_given(*arguments)
        seconds = time.perf_counter() - began_s
        if not beside:
            self._short.ran(kind, seconds)
        self._allowance.ran_eager(seconds)
        return result

    def _with_other_cores(self, found: Tuning | Fallback | None) -> Tuning | Fallback | None:
        """What runs a call while the cores are not those of `machine`; None where all must be measured anew."""
        if isinstance(found, Tuning) and found.follows and not self.cores.has_more:
            return found
        if isinstance(found, Fallback):
            return found
        others_follow = any(tuning.follows for tuning in self._table.tunings)
        if self.cores.unchanged and (self.cores.has_more or not others_follow):
            self._end_threads()
            self.machine = self.cores.adopt()
            self._planner = Planner(self.machine)
            return None
        if isinstance(found, Tuning) and found.follows:
            return found
        return Fallback("it has other cores than it was measured on, and they may go as soon as they came")

    def _resized(self, cores: Sequence[Core]) -> None:
        for tuning in self._table.tunings:
            tuning.resize(cores)

    def _may_capture(self) -> bool:
        """Whether learning may take the time of one more capture."""
        return self._allowance.allows(self._capture_s)

    def _tuning(
        self, arguments: tuple[Any, ...], kind: CallKind, family: SizeFamily | None, *, now: bool
    ) -> Tuning | Fallback | FirstCall:
        def capture(memory_format: MemoryFormat) -> Captured:
            if family is None:
                captured = self._captured(arguments, memory_format)
                return captured if layout is None or memory_format is given else layout.restored(captured)
            return family.captured(partial(self._captured, arguments, memory_format))

        if self._feedback is None and self._store is not None:
            self._feedback = StepFeedback(self._store, self.machine)
        given = MemoryFormat.AS_GIVEN
        formats = (self._formats or formats_of(self._model, arguments)) if family is None else (given,)
        if formats != (given,) and (why := self._format.why_fixed()) is not None:
            _logger.info("%s: it runs in the memory format as given only: %s", self._title, why)
            formats = (given,)
        in_one = formats == (given,) or self._shadowed.optimizer is not None  # a training step returns a loss
        layout = None if in_one else ResultLayout(self._model, self._format)
        default = self._default if layout is None else layout.eager(self._default)
        chosen = self.cores.chosen
        stored = PlanStore(self._folder, self.machine, among=f"{self._among(chosen)}, fused: {self._fuse}")
        fixed = family is None and kind.autocast is None
        try:
            with one_capture(wait_s=None if now or self._allowance.share >= 1 else 0.0):
                return Tuning(
                    default,
                    capture,
                    self._format,
                    formats,
                    self.machine,
                    call=(self._name, kind.arguments, *([] if kind.autocast is None else [str(kind.autocast)])),
                    plans=stored if family is None else NoPlanStore(self.machine),
                    backends=self._backends(len(self.machine), chosen) if fixed else None,
                    fuse=self._fuse and family is None,
                    checked=replace(self._shadowed, eager=partial(self._reference, default)),
                    store=self._store if family is None else None,
                    feedback=self._feedback if family is None else None,
                    like=[plan for tuning in reversed(self._table.tunings) for plan in tuning.plans],
                    warm_up=WarmUp(self._allowance, eager_s=self._short.take(kind)),
                    planner=self._planner,
                    title=self._title,
                    steady=family is None,
                    looking_s=lambda: self._looking_s,
                )
        except NoTurn:
            self._no_turn = True
            return FIRST_CALL
        except FirstStepMissing:
            return FIRST_CALL
        except CaptureError as error:
            if family is not None:  # the call gets a graph of its own
                _logger.info("%s: no graph for several sizes: %s", self._title, error)
                return FIRST_CALL
            return self._not_captured(kind, error)

    def _not_captured(self, kind: CallKind, error: CaptureError) -> Fallback | FirstCall:
        """What runs a kind of calls that cannot be captured. UpdateApart where only the optimizer's part cannot."""
        if isinstance(error, OptimizerRefused):
            raise UpdateApart(str(error)) from error
        if isinstance(error, ModuleChanged | CacheFilled) and kind.arguments not in self._changing:
            self._awaited = kind.arguments
            return FIRST_CALL
        # Dynamo does not watch Python values and ignores caches, and other processes may divide calls otherwise
        return Fallback(str(error), divisible=not isinstance(error, Unwatchable | CacheFilled | Collective))

    def _captured(
        self, arguments: tuple[Any, ...], memory_format: MemoryFormat, dynamic: Dynamic | None = None
    ) -> Captured:
        self._format.set(memory_format)
        with one_capture(), without_garbage_collection():
            began_s = time.perf_counter()
            captured = self._capture(arguments, self._format, dynamic)
            if dynamic is not None and not takes_the_same_way(captured, self._capture(arguments, self._format, None)):
                raise CaptureError("cannot capture for several sizes: the callable takes another way with symbols")
            self._capture_s = time.perf_counter() - began_s
        self._watch.renew()  # capturing makes an optimizer's missing state
        return captured

    def _observed(self) -> Observation:
        """The state of model and optimizer. Where tensors were replaced, drops all graphs, which hold the old ones."""
        observed = self._watch.observe()
        if observed.changed:
            self._drop_graphs()
            self._format.reset()
            self._watch.renew()
            now = self._watch.observe()
            observed = replace(now, unsteady=observed.unsteady or now.unsteady)
        return observed

    def _changes_format(self, found: Tuning | Fallback | None) -> bool:
        """Whether a call that `found` runs may change the memory format; None: what runs it is still to be made."""
        runs_in = found.runs_in if isinstance(found, Tuning) else MemoryFormat.AS_GIVEN
        return runs_in is not self._format.current or (self._verify_every > 0 and runs_in is not MemoryFormat.AS_GIVEN)

    def _take_format(self) -> None:
        """Take the format that was just set for granted; where tensors cannot be looked at, the next call finds it."""
        if why_transformed() is None and not self.forked:
            self._watch.renew()

    def _keep_format(self, reason: str) -> None:
        """Leave tensors as they are from now on; the graphs, which need them in several formats, are dropped."""
        _logger.info("%s: from now on the memory format of the model stays as it is: %s", self._title, reason)
        self._drop_graphs()
        self._formats = (MemoryFormat.AS_GIVEN,)
        self._format.reset()
        self._watch.renew()

    def _warn(self, reason: str) -> None:
        """Warn once of what runs as PyTorch."""
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"threadcast runs this as PyTorch does: {reason}", stacklevel=4)

    def _as_before(self, fallback: Fallback, arguments: tuple[Any, ...]) -> Any:
        """Run a call in eager PyTorch, or in parts where it can be divided."""
        self._warn(fallback.reason)
        parts = self._parts_for(fallback)
        if parts is None:
            return self._as_given(*arguments)
        if parts.leaves_alone(self._looking_s) and not self._table.tunings and fallback in self._table:
            self._left_alone.after_fastest(arguments)
        return parts(*arguments)

    def _parts_for(self, fallback: Fallback) -> Parts | None:
        """What runs a call in parts; None where it is not divided: other processes may divide what they exchange
        otherwise, and without a graph of a whole call it is not known whether it does."""
        return self._parts if fallback.divisible and not may_exchange() else None

    def _report(self, runner: Tuning | Fallback) -> Report:
        if isinstance(runner, Tuning):
            return runner.report
        parts = self._parts_for(runner)
        return Report.as_default(runner.reason) if parts is None else parts.report(runner.reason)

    def _as_given(self, *arguments: Any) -> Any:
        """Run a call in eager PyTorch in the given memory format."""
        changes = self._changes_format(None) and why_transformed() is None  # within which tensors cannot be looked at
        if changes and (why := self._format.why_fixed()) is not None:
            self._keep_format(why)
        self._format.set(MemoryFormat.AS_GIVEN)
        return self._default(*arguments)

    def _reference(self, default: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call as `_as_given` does, and restore the memory format, in which the compared call ran."""
        with self._format.as_given():
            return default(*arguments)

    def _verified(self, tuning: Tuning, arguments: tuple[Any, ...]) -> Any:
        """Run a call, and some calls in eager PyTorch too; WrongResult where the results differ."""
        self._calls += 1
        if self._calls % self._verify_every:
            return tuning(*arguments)
        reason = self._shadowed.too_large(arguments, tuning.captured)
        if reason is None:
            return shadow_step(self._shadowed, tuning, arguments, tuning.captured, lambda: tuning.ran)
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"threadcast does not verify this call: {reason}", stacklevel=4)
        return tuning(*arguments)
