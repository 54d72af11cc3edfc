"""A call that runs in float32 or in bfloat16, whichever is faster, within a tolerance that the caller knows."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from threadcast.core import Machine
from threadcast.core.errors import CaptureError
from threadcast.core.settings import Settings
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.backends.result_memory import ResultMemory
from threadcast.runtime.calls.fallback import Fallback, FirstCall, why_no_inputs, why_transformed
from threadcast.runtime.calls.kinds import CallKind, flattened, kind_of
from threadcast.runtime.calls.shared_learning import budget
from threadcast.runtime.doors.bfloat16_speed import bfloat16_speed
from threadcast.runtime.doors.in_bfloat16 import InBfloat16
from threadcast.runtime.doors.optimized_call import OptimizedCall
from threadcast.runtime.doors.type_choice import Type, TypeChoice, TypeReport, Way, largest_difference
from threadcast.runtime.engine.native.library import in_step
from threadcast.runtime.tuner.budget import PartBudget
from threadcast.runtime.tuner.contender import Contender
from threadcast.runtime.tuner.report import SHOWN, Report, in_brief
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching.held_state import Change, HeldState

_logger = logging.getLogger("threadcast")

MOST_KINDS = 1_000
"""Most kinds of calls that are remembered; of more, those that came first are forgotten."""
SOON, MOST_CHANGES = 10, 8
"""bfloat16 is left after more changes in a row than this, each at most so many calls after the last. A convention: each
change costs a call in both types, which gains in between seldom make up for."""


class CallInTypes(OptimizedCall):
    """An `OptimizedCall` that also tries bfloat16: autocast around the function, with results in the types of float32.

    `types` says which type runs and the largest difference seen. Only calls that write to nothing and draw no random
    numbers are tried, of modules in eval mode. Results in bfloat16 are compared with float32's at first, in the call
    after each change of anything that the function reads, and once in `type_choice.RECHECK` calls. Where one differs by
    more than the tolerance, and where something changes too often, float32 runs from then on, with a warning where
    bfloat16 ran before. With `backends` OpenVINO and `torch.compile` are tried in both types; a backend's first result
    in bfloat16 is compared before one is returned, and without backends it is tried again where one differs too much.
    """

    def __init__(
        self, function: Callable[..., Any], machine: Machine, *, backends: bool, most: int | None = None,
        tolerance: float,
    ) -> None:  # fmt: skip
        super().__init__(function, machine, backends=backends, most=most)
        self._function, self._machine, self._most, self._tolerance = function, machine, most, tolerance
        self._rough_backends = backends and not Settings.read()["engine.verify_every"]
        """Whether backends may be tried in bfloat16: what verifies calls allows less than they differ by."""
        self._backends_left = False
        """Whether one of them was too far from float32."""
        self._module: InBfloat16 | None = None
        self._half: OptimizedCall | None = None
        self._state: HeldState | None = None
        """What the function reads besides its arguments, since there is a call in bfloat16."""
        self._never = ""
        """Why no kind of calls runs in bfloat16 from here on; empty where some may."""
        self._changes_in_a_row = self._unchanged_calls = 0
        self._choices: dict[CallKind | str, TypeChoice] = {}
        """By kind of calls; of calls that cannot be captured, by why."""
        self._choice: TypeChoice | None = None
        """That of the last call."""
        self._budget = budget(Settings.read()["engine.tuning_share"]).part()
        self._half_budget = PartBudget(self._budget, counts=False)
        """What calls in bfloat16 may spend by themselves, which count themselves once they have won."""
        self._closed = False
        """Whether all is to be measured anew."""
        self._hurries: ExitStack | None = None
        self._type_lock = RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._optimized.forked or in_step() or why_transformed() is not None:
            return super().__call__(*args, **kwargs)
        with self._type_lock:
            if self._closed:
                self._choices.clear()
                self._closed = False
            choice = self._choice_of(args, kwargs)
            if self._state is not None and self._follow(self._state, counts=choice.report.runs != "float32"):
                choice = self._choice_of(args, kwargs)
            self._choice = choice
            before = choice.report.runs
            try:
                return self._run(choice, args, kwargs)
            finally:
                if before != choice.report.runs == "float32":
                    self._end_search()
                if self._state is not None:
                    self._state.follow_moves()

    @property
    def types(self) -> list[TypeReport]:
        """One report for each kind of arguments: which type runs, and the largest difference seen."""
        return [choice.report for choice in self._choices.values()]

    @property
    def by_type(self) -> dict[Type, str]:
        """What runs the calls of each type, of several kinds of calls those that came first; "" where there is none."""
        calls: dict[Type, list[Report]] = {
            "float32": self._optimized.reports, "bfloat16": [] if self._half is None else self._half._optimized.reports,
        }  # fmt: skip
        return {name: reports[0].runs if reports else "" for name, reports in calls.items()}

    def __repr__(self) -> str:
        types = "; ".join(in_brief(map(str, self.types), SHOWN, "kinds of calls"))
        return f"{super().__repr__()[:-1]}; {types})" if types else super().__repr__()

    def resize(self, cores: int | Iterable[int] | None) -> tuple[tuple[int, ...], ...]:
        if self._half is not None:
            self._half.resize(cores)
        return super().resize(cores)

    def close(self) -> None:
        with self._type_lock:
            self._drop_half()
            self._closed = True
            super().close()

    @property
    def learning(self) -> bool:
        if self._optimized.forked:
            return False
        runs = None if self._choice is None else self._choice.report.runs
        if runs == "bfloat16":
            return self._half is not None and self._half.learning
        return super().learning or (self._choice is not None and runs is None)

    @property
    def _gain_left(self) -> float:
        runs = None if self._choice is None else self._choice.report.runs
        if runs is None:
            return math.inf
        return super()._gain_left if runs == "float32" or self._half is None else self._half._gain_left

    def _wait(self, timeout_s: float) -> None:
        half = self._half
        if half is None or self._optimized.learning:
            super()._wait(timeout_s)
        else:
            half._wait(timeout_s)

    @contextmanager
    def _hurry(self) -> Iterator[None]:
        with ExitStack() as end:
            end.enter_context(super()._hurry())
            if self._half is not None:
                end.enter_context(self._half._hurry())
            end.enter_context(self._budget.without_limit())
            self._hurries = end
            try:
                yield
            finally:
                self._hurries = None

    def _run(self, choice: TypeChoice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        way = choice.next_way()
        if way is Way.BFLOAT16 and self._state is None:
            choice.written()
            way = Way.BOTH
        if way is Way.BOTH:
            return self._both(choice, args, kwargs)
        if way is Way.BFLOAT16:
            return self._in_bfloat16(choice, args, kwargs)
        began_s = time.perf_counter()
        result = super().__call__(*args, **kwargs)
        seconds = time.perf_counter() - began_s
        if choice.report.runs is None:
            settled = self._settled(choice)
            choice.ran_float32(started_s=began_s, seconds=seconds, settled=settled)
        return result

    def _choice_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeChoice:
        leaves, structure = flattened((args, kwargs))
        try:
            kind = kind_of(leaves, structure, frozenset(), None)
            choice = self._choices.get(kind)
        except (TypeError, RuntimeError):  # sparse and nested tensors have no strides, and objects may have no hash
            if (reason := why_no_inputs(leaves)) is None:
                raise
            return self._not_tried(reason)
        if choice is None:
            if (reason := why_no_inputs(leaves)) is not None:
                return self._not_tried(reason)
            choice = self._choices[kind] = TypeChoice(TypeReport(tolerance=self._tolerance), budget=self._budget)
            if len(self._choices) > MOST_KINDS:
                del self._choices[next(iter(self._choices))]
            if kind.autocast is not None:
                choice.keep_float32("the caller's own autocast is on")
            elif self._never:
                choice.keep_float32(self._never)
            elif not bfloat16_speed().may_pay:
                choice.keep_float32("bfloat16 is slower on this CPU (threadcast doctor)")
        if isinstance(self._function, nn.Module) and choice.report.runs != "float32" and _trains(self._function):
            return _in_training(self._tolerance)
        return choice

    def _not_tried(self, reason: str) -> TypeChoice:
        """The choice for calls that cannot be captured, one for each reason: their arguments are not kept."""
        choice = self._choices.get(reason)
        if choice is None:
            choice = self._choices[reason] = TypeChoice(TypeReport(tolerance=self._tolerance), budget=self._budget)
            choice.keep_float32(f"not tried in bfloat16: {reason}")
        return choice

    def _settled(self, choice: TypeChoice) -> bool:
        """Whether float32 has settled; where such calls cannot be tried in bfloat16, it is kept."""
        last = self._optimized._last
        if isinstance(last, Fallback):
            choice.keep_float32(f"not tried in bfloat16: {last.reason}")
        if not isinstance(last, Tuning) or self._optimized.learning:
            return False
        return self._may_run_twice(choice, last)

    def _may_run_twice(self, choice: TypeChoice, last: object) -> bool:
        """Whether running a call twice does what running it once does; if not, float32 is kept."""
        captured = last.captured if isinstance(last, Tuning) else None
        if captured is None or captured.written or captured.random:
            choice.keep_float32("not tried in bfloat16: the call writes to tensors or draws random numbers")
            return False
        return True

    def _both(self, choice: TypeChoice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = choice.report.runs
        result = super().__call__(*args, **kwargs)
        last = self._optimized._last
        if isinstance(last, FirstCall) or not self._may_run_twice(choice, last):
            return result
        if self._state is None and not self._watches():
            return result
        self._half_budget.counts = False
        with Failure() as failure:
            half = self._in_half()
            began_s = time.perf_counter()
            rough = self._cast_back(half(*args, **kwargs))
            seconds = time.perf_counter() - began_s
        if failure.error is not None:  # float32 has given its result; only bfloat16 cannot run the call
            choice.keep_float32(f"in bfloat16 it raises {failure}")
            return result
        difference, why = largest_difference(result, rough)
        why = why or _why_shared_otherwise(result, rough)
        backend = _backend_of(half)
        if backend is not None and not choice.compared_way(backend, difference, why):
            self._leave_backends(backend)
            return result
        choice.compared(difference, why, seconds=seconds)
        if before == "bfloat16" and choice.report.runs == "float32":
            warnings.warn(f"threadcast leaves bfloat16: {choice.report.reason}", stacklevel=3)
        return result

    def _in_bfloat16(self, choice: TypeChoice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        half = self._in_half()
        self._half_budget.counts = choice.report.runs == "bfloat16"
        began_s = time.perf_counter()
        with Failure() as failure:
            result = self._cast_back(half(*args, **kwargs))
        if failure.error is not None:  # the call has written to nothing, and runs in float32
            choice.keep_float32(f"in bfloat16 it raises {failure}")
            return super().__call__(*args, **kwargs)
        seconds = time.perf_counter() - began_s
        backend = _backend_of(half)
        if backend is not None and backend not in choice.compared_ways:
            precise = super().__call__(*args, **kwargs)
            if not choice.compared_way(backend, *largest_difference(precise, result)):
                self._leave_backends(backend)
                return precise
            result = precise
        last = half._optimized._last
        settled = isinstance(last, Fallback) or (isinstance(last, Tuning) and not half._optimized.learning)
        choice.ran_bfloat16(started_s=began_s, seconds=seconds, settled=settled)
        return result

    def _end_search(self) -> None:
        """End the search for backends in bfloat16 for the kind of the last call, which runs in float32 from here on."""
        last = None if self._half is None else self._half._optimized._last
        if isinstance(last, Tuning):
            last.end_search()

    def _leave_backends(self, backend: Contender) -> None:
        """Learn bfloat16 once more without backends, of which this one's results differ too much."""
        reason = f"{backend.name}: its results differ from float32's by more than the tolerance"
        if any(choice.report.runs == "bfloat16" for choice in self._choices.values()):
            warnings.warn(f"threadcast leaves backends in bfloat16: {reason}", stacklevel=4)
        _logger.info("backends in bfloat16 are left out: %s", reason)
        self._drop_half()
        self._backends_left = True
        for choice in self._choices.values():
            if choice.report.runs != "float32":
                choice.begin_anew()

    def _cast_back(self, result: Any) -> Any:
        """Autocast's results in the type of float32's, which share memory as autocast's do."""
        leaves, structure = pytree.tree_flatten(result)
        rough = {at: x for at, x in enumerate(leaves) if isinstance(x, Tensor) and x.dtype is torch.bfloat16}
        if not rough:
            return result
        cast: Sequence[Tensor] = [x.float() for x in rough.values()]
        if len(rough) > 1 and _share_storage(rough.values()):
            memory = ResultMemory(list(rough.values()))
            cast = memory.laid_out(cast) if memory.shares_elements else cast
        for at, x in zip(rough, cast, strict=True):
            leaves[at] = x
        return pytree.tree_unflatten(leaves, structure)

    def _in_half(self) -> OptimizedCall:
        if self._half is None:
            function: Callable[..., Any] = _under_autocast(self._function)
            if isinstance(self._function, nn.Module):
                function = self._module = InBfloat16(self._function)
            backends = self._rough_backends and not self._backends_left
            self._half = OptimizedCall(
                function, self._machine, backends=backends, most=self._most, rough=self._half_budget
            )
            if self._hurries is not None:
                self._hurries.enter_context(self._half._hurry())
        return self._half

    def _watches(self) -> bool:
        """Watch from here on what the function reads; where changes cannot be found, keep float32 and return False."""
        state = HeldState(self._function)
        if state.unwatchable:
            self._leave(f"not tried in bfloat16: {state.unwatchable}")
            return False
        self._state = state
        return True

    def _follow(self, state: HeldState, *, counts: bool) -> bool:
        """Compare the next call of each kind in both types if anything has changed; begin anew if it was replaced.

        Returns whether it begins anew, with other choices. `counts`: whether a change counts towards `MOST_CHANGES`.
        """
        change = state.changed()
        if change is Change.NONE:
            self._unchanged_calls += 1
            return False
        if counts:
            in_a_row = self._unchanged_calls < SOON
            self._changes_in_a_row = self._changes_in_a_row + 1 if in_a_row else 1
            self._unchanged_calls = 0
        if self._changes_in_a_row > MOST_CHANGES:
            self._leave(
                f"weights or attributes changed {self._changes_in_a_row} times within few calls each, and every change "
                "is checked in both types"
            )
        elif change is Change.OBJECTS:
            self._drop_half()
            self._choices.clear()
            return True
        else:
            if self._module is not None:
                self._module.cast_again()
            for choice in self._choices.values():
                choice.written()
        return False

    def _leave(self, reason: str) -> None:
        """Run all calls in float32 from here on."""
        self._never = reason
        left = [choice for choice in self._choices.values() if choice.report.runs != "float32"]
        if any(choice.report.runs == "bfloat16" for choice in left):
            warnings.warn(f"threadcast leaves bfloat16: {reason}", stacklevel=4)
        for choice in left:
            choice.keep_float32(reason)
        self._drop_half()

    def _drop_half(self) -> None:
        half, self._half, self._module, self._state = self._half, None, None, None
        self._backends_left = False
        if half is not None:
            half.close()


def _backend_of(half: OptimizedCall) -> Contender | None:
    """The backend that ran the last call; None where something else did."""
    last = half._optimized._last
    return last.ran_by_backend if isinstance(last, Tuning) else None


def _trains(module: nn.Module) -> bool:
    return any(part.training for part in module.modules())


def _in_training(tolerance: float) -> TypeChoice:
    choice = TypeChoice(TypeReport(tolerance=tolerance))
    choice.keep_float32("the module is in training mode")
    return choice


def _under_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*args, **kwargs)

    return call


def _why_shared_otherwise(precise: Any, rough: Any) -> str:
    """Why elements of two nested results do not share memory with one another in the same way; "" where they do."""
    memories = []
    for result in (precise, rough):
        tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.layout is torch.strided]
        try:
            memories.append(ResultMemory(tensors))
        except CaptureError as error:
            return str(error)
    return "" if memories[0].is_like(memories[1]) else "results share memory in one of the types only"


def _share_storage(tensors: Collection[Tensor]) -> bool:
    """Whether any two of these tensors have a storage in common."""
    strided = all(x.layout is torch.strided for x in tensors)
    return strided and len({x.untyped_storage()._cdata for x in tensors}) < len(tensors)
