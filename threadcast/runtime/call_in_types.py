"""A call that runs in float32 or in bfloat16, whichever is faster, within a tolerance that the caller knows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from threadcast.capture.dependencies import is_random
from threadcast.core import Machine
from threadcast.core.settings import Settings
from threadcast.runtime.bfloat16_speed import bfloat16_speed
from threadcast.runtime.call_kinds import CallKind, flattened, kind_of
from threadcast.runtime.fallback import Fallback
from threadcast.runtime.in_bfloat16 import InBfloat16
from threadcast.runtime.optimized_call import OptimizedCall
from threadcast.runtime.tuning.tuning import Tuning
from threadcast.runtime.type_choice import TypeChoice, TypeReport, Way, largest_difference

MOST_KINDS = 1_000
"""Most kinds of calls that are remembered; of more, those that came first are forgotten."""


class CallInTypes(OptimizedCall):
    """An `OptimizedCall` that also tries bfloat16: autocast around the function, with results in the types of float32.

    `types` says which type runs and the largest difference seen. Only calls that write to nothing and draw no random
    numbers are tried, of modules in eval mode. Results in bfloat16 are compared with float32's at first, after each
    write to the weights, and once in `type_choice.RECHECK` calls; may one differ by more than the tolerance, float32
    runs from then on, with a warning where bfloat16 ran before.
    """

    def __init__(
        self, function: Callable[..., Any], machine: Machine, *, backends: bool, most: int | None = None,
        tolerance: float,
    ) -> None:  # fmt: skip
        super().__init__(function, machine, backends=backends, most=most)
        self._function, self._machine, self._most, self._tolerance = function, machine, most, tolerance
        self._module: InBfloat16 | None = None
        self._half: OptimizedCall | None = None
        self._choices: dict[CallKind, TypeChoice] = {}
        self._choice: TypeChoice | None = None
        """That of the last call."""
        self._share = Settings.read()["engine.tuning_share"]
        self._type_lock = RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._type_lock:
            choice = self._choice = self._choice_of(args, kwargs)
            if self._module is not None and choice.report.runs != "float32":
                self._follow(self._module)
            way = choice.next(self._share)
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

    @property
    def types(self) -> list[TypeReport]:
        """One report for each kind of arguments: which type runs, and the largest difference seen."""
        return [choice.report for choice in self._choices.values()]

    def __repr__(self) -> str:
        types = "; ".join(str(report) for report in self.types)
        return f"{super().__repr__()[:-1]}; {types})" if types else super().__repr__()

    def resize(self, cores: int | Iterable[int] | None) -> tuple[tuple[int, ...], ...]:
        if self._half is not None:
            self._half.resize(cores)
        return super().resize(cores)

    def close(self) -> None:
        self._drop_half()
        super().close()

    @property
    def _is_learning(self) -> bool:
        return super()._is_learning or (self._choice is not None and self._choice.report.runs is None)

    @contextmanager
    def _hurry(self) -> Iterator[None]:
        with ExitStack() as end:
            end.enter_context(super()._hurry())
            end.enter_context(self._in_half()._hurry())
            share, self._share = self._share, 1.0
            try:
                yield
            finally:
                self._share = share

    def _choice_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeChoice:
        leaves, structure = flattened((args, kwargs))
        kind = kind_of(leaves, structure, frozenset(), None)
        choice = self._choices.get(kind)
        if choice is None:
            choice = self._choices[kind] = TypeChoice(TypeReport(tolerance=self._tolerance))
            if len(self._choices) > MOST_KINDS:
                del self._choices[next(iter(self._choices))]
            if kind.autocast is not None:
                choice.keep_float32("the caller's own autocast is on")
            elif not bfloat16_speed().may_pay:
                choice.keep_float32("bfloat16 is slower on this CPU (threadcast doctor)")
        if isinstance(self._function, nn.Module) and choice.report.runs != "float32" and _trains(self._function):
            return _in_training(self._tolerance)
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
        if captured is None or captured.written or any(map(is_random, captured.program.nodes)):
            choice.keep_float32("not tried in bfloat16: the call writes to tensors or draws random numbers")
            return False
        return True

    def _both(self, choice: TypeChoice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = choice.report.runs
        result = super().__call__(*args, **kwargs)
        if not self._may_run_twice(choice, self._optimized._last):
            return result
        try:
            began_s = time.perf_counter()
            rough = self._cast_back(self._in_half()(*args, **kwargs))
            seconds = time.perf_counter() - began_s
        except Exception as error:  # noqa: BLE001 - float32 has given its result; only bfloat16 cannot run the call
            choice.keep_float32(f"{type(error).__name__} in bfloat16: {error}")
            return result
        casting_s = 0.0 if self._module is None else self._module.cast_s
        choice.compared(*largest_difference(result, rough), eager_s=seconds - casting_s)
        if before == "bfloat16" and choice.report.runs == "float32":
            warnings.warn(f"threadcast leaves bfloat16: {choice.report.reason}", stacklevel=3)
        return result

    def _in_bfloat16(self, choice: TypeChoice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        half = self._in_half()
        began_s = time.perf_counter()
        try:
            result = self._cast_back(half(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the call has written to nothing, and runs in float32
            choice.keep_float32(f"{type(error).__name__} in bfloat16: {error}")
            return super().__call__(*args, **kwargs)
        seconds = time.perf_counter() - began_s
        last = half._optimized._last
        settled = isinstance(last, Fallback) or (isinstance(last, Tuning) and not half._optimized.learning)
        choice.ran_bfloat16(started_s=began_s, seconds=seconds, settled=settled)
        return result

    def _cast_back(self, result: Any) -> Any:
        """Autocast's results in the type of float32's."""
        return pytree.tree_map_only(Tensor, lambda x: x.float() if x.dtype is torch.bfloat16 else x, result)

    def _in_half(self) -> OptimizedCall:
        if self._half is None:
            function: Callable[..., Any] = _under_autocast(self._function)
            if isinstance(self._function, nn.Module):
                function = self._module = InBfloat16(self._function)
            self._half = OptimizedCall(function, self._machine, backends=False, most=self._most)
        return self._half

    def _follow(self, module: InBfloat16) -> None:
        """Bring casts up to date with the module; where its tensors were exchanged, begin anew."""
        if not module.is_current:
            self._drop_half()
            self._choices.clear()
            self._choice = TypeChoice(TypeReport(tolerance=self._tolerance))
        elif module.renew():
            for choice in self._choices.values():
                choice.written()

    def _drop_half(self) -> None:
        half, self._half, self._module = self._half, None, None
        if half is not None:
            half.close()


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
