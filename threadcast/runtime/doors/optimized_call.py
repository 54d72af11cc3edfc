"""A callable that runs inference by the fastest way that is found in its own calls."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Self

import torch
from torch import nn

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.core.arguments import check, is_number
from threadcast.core.settings import Settings
from threadcast.runtime.backends.libraries import installed
from threadcast.runtime.backends.search import BackendSearch, begin_process
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.check.shadow import Shadowed, leaves
from threadcast.runtime.doors.given import likely_slip
from threadcast.runtime.doors.optimized import Optimized
from threadcast.runtime.doors.optimized_model import Formatted, OptimizedModel, described, short_name
from threadcast.runtime.doors.own_calls import OwnCalls, in_training
from threadcast.runtime.plans.backend_history import NAME as HISTORY
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.tuner.candidate import MakeBackends


class OptimizedCall(OptimizedModel):
    """A callable with the signature and the results of `function`, without gradients.

    The calls measure and plan as they go, and lose no more time by it than the setting `engine.tuning_share` allows.
    `reports` say what runs the calls.
    """

    def __init__(
        self, function: Callable[..., Any], machine: Machine, *, backends: bool, most: int | None = None
    ) -> None:
        self.__wrapped__ = function  # what is captured of a function that calls this
        self._told_of_training, self._searches = False, backends and isinstance(function, nn.Module)
        model = function if isinstance(function, nn.Module) else None

        def default(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with torch.no_grad():
                return function(*args, **kwargs)

        def capture(arguments: tuple[Any, ...], model_format: ModelFormat) -> Captured:
            if model is not None:
                self._tell_of_training(model)
            called: Callable[..., Any] = (
                (lambda args, kwargs: function(*args, **kwargs)) if model is None else Formatted(model, model_format)
            )
            return capture_forward(called, *arguments)

        history = Settings.read()["engine.plans"] / HISTORY

        def of_backends(cores: int, cpus: Sequence[int] | None) -> MakeBackends | None:
            if not backends or model is None:
                return None
            options: dict[str, Any] = {"cpus": cpus, "history": history}
            return lambda captured, arguments, result: BackendSearch(
                model, arguments, captured, cores, result=result, **options
            )

        def trace(model_format: ModelFormat, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with torch.no_grad():
                function(*args, **kwargs) if model is None else Formatted(model, model_format)(args, kwargs)

        self._title = f"inference of {short_name(function)}"
        name = f"inference of {described(function)}"
        shadowed = Shadowed(default, trace, model, None, leaves)
        spec = CallSpec(
            shadowed=shadowed, capture=capture, name=name, title=self._title, watched=(model, None),
            functions=(function,), backends=of_backends, among=cache(installed) if backends else lambda _: "",
            most=most,
        )  # fmt: skip
        self._optimized = Optimized(spec, machine)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimized(args, kwargs)

    def learn(self, *args: Any, at_most_s: float = math.inf, progress: bool = True, **kwargs: Any) -> Self:
        """Call with these arguments until nothing is left to learn about such calls, or for `at_most_s` seconds.

        What these calls change is set back at the end: the model and all else that the function can reach, the
        arguments, and the random generators (`OwnCalls`); where that cannot be, a warning says why, and nothing is
        called. Learning is not limited to `engine.tuning_share` meanwhile, and that the native engine is compiled, once
        on a machine, does not count; `progress` shows what is learned, as that of `optimize`. Returns this object.
        InvalidInput for no time.
        """
        check(is_number(at_most_s) and at_most_s > 0, "at_most_s", at_most_s, "seconds above 0")
        self.learn_from(args, kwargs, seconds=at_most_s, least_gain=0.0, progress=progress)
        return self

    def learn_from(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, seconds: float, least_gain: float, progress: bool
    ) -> None:
        """As `learn`, and no longer than at least `least_gain` is expected of going on."""
        own = OwnCalls(self.__wrapped__, (args, kwargs))
        if own.refused is not None:
            text, slip = f"threadcast learns nothing from this example: {own.refused}", likely_slip(args)
            warnings.warn(f"{text}{slip and f'; {slip}'}", stacklevel=3)
            return
        self._tell_of_training(own.modules)
        if self._searches and not any(part.training for part in self.__wrapped__.modules()):  # type: ignore[attr-defined]
            cores = self._optimized.cores
            begin_process(len(cores.cores), history=Settings.read()["engine.plans"] / HISTORY, cpus=cores.chosen)
        try:
            with self._showing(progress, seconds):
                self._learn(own, lambda: self(*args, **kwargs), seconds=seconds, least_gain=least_gain)
        except Exception as error:
            if slip := likely_slip(args):
                error.add_note(slip)
            raise

    def _tell_of_training(self, model: nn.Module) -> None:
        """Warn once of layers that compute something else in training mode, as batch norms and dropouts do."""
        if not self._told_of_training and (layers := in_training(model)):
            self._told_of_training = True
            warnings.warn(
                f"the model is in training mode, in which {', '.join(layers[:3])} may give other results than for "
                "inference, and no backend is tried; call model.eval() before",
                stacklevel=3,
            )
