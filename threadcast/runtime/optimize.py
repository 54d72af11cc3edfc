"""`optimize` and `optimize_training`: make a PyTorch model's inference or training step on CPU cores faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from threadcast.capture.capture import Captured, capture_forward
from threadcast.capture.fake_tensors import load_fake_tensors
from threadcast.capture.sizes import Dynamic
from threadcast.core import Machine
from threadcast.core.errors import InvalidInput
from threadcast.core.settings import Settings
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.backends.search_slot import SearchSlot
from threadcast.runtime.backends.ways import LEAST_SHARE, installed
from threadcast.runtime.batch_loss import BatchLoss
from threadcast.runtime.core_choice import Cores, core_choice
from threadcast.runtime.optimized import Optimized
from threadcast.runtime.optimized_model import Formatted, OptimizedModel, described, short_name
from threadcast.runtime.optimized_step import OptimizedStep
from threadcast.runtime.parameter_update import ParameterUpdate
from threadcast.runtime.parts import Backend
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.short_calls import TIMED
from threadcast.runtime.tuning.contender import MakeBackends
from threadcast.runtime.verification.shadow import Shadowed, leaves
from threadcast.threads.memory import keep_freed_memory
from threadcast.threads.this_process import this_process

EXAMPLE_S = 2.0
"""Seconds for which `optimize` learns from an example before it returns. A convention."""

_WAIT_S = 1.0
"""Longest time in seconds between two calls of `learn`, which leaves the cores to a search for backends."""


class OptimizedCall(OptimizedModel):
    """A callable with the signature and the results of `function`, without gradients.

    The calls measure and plan as they go, and lose no more time by it than the setting `engine.tuning_share` allows.
    `reports` say what runs the calls.
    """

    def __init__(
        self, function: Callable[..., Any], machine: Machine, *, backends: bool, most: int | None = None
    ) -> None:
        model = function if isinstance(function, nn.Module) else None

        def default(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with torch.no_grad():
                return function(*args, **kwargs)

        def capture(arguments: tuple[Any, ...], model_format: ModelFormat, dynamic: Dynamic | None) -> Captured:
            if model is None:
                return capture_forward(lambda args, kwargs: function(*args, **kwargs), *arguments, dynamic=dynamic)
            return capture_forward(Formatted(model, model_format), *arguments, dynamic=dynamic)

        settings = Settings.read()
        share, history = max(settings["engine.tuning_share"], LEAST_SHARE), settings["engine.plans"] / "backends"

        slot = SearchSlot()

        def of_backends(cores: int) -> MakeBackends | None:
            if not backends or model is None:
                return None
            return lambda captured, arguments, result: slot.fill(
                lambda: BackendSearch(model, arguments, captured, cores, result=result, share=share, history=history)
            )

        def trace(model_format: ModelFormat, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with torch.no_grad():
                function(*args, **kwargs) if model is None else Formatted(model, model_format)(args, kwargs)

        def divide(backend: Backend) -> Callable[..., Any]:
            compiled = torch.compile(function, backend=backend)

            def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                with torch.no_grad():
                    return compiled(*args, **kwargs)

            return call

        self._title = f"inference of {short_name(function)}"
        name = f"inference of {described(function)}"
        among = installed() if backends else ""
        shadowed = Shadowed(default, trace, model, None, leaves)
        self._optimized = Optimized(
            shadowed,
            capture,
            machine,
            name=name,
            title=self._title,
            watched=(model, None),
            functions=(function,),
            backends=of_backends,
            among=among,
            most=most,
            divide=divide,
        )
        this_process().steps.ask_learning(self._learning)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimized(args, kwargs)

    def learn(self, *args: Any, at_most_s: float = math.inf, **kwargs: Any) -> Self:
        """Call with these arguments until nothing is left to learn about such calls, or for `at_most_s` seconds.

        Learning is not limited to `engine.tuning_share` meanwhile. Returns this object. InvalidInput for no time.
        """
        if not at_most_s > 0:
            raise InvalidInput(f"at_most_s={at_most_s!r} must be above 0")
        end_s = time.monotonic() + at_most_s
        for _ in range(TIMED + 1):  # the first calls may fill caches of the model's
            self(*args, **kwargs)
        with self._optimized.hurry():
            while self._optimized.learning and time.monotonic() < end_s:
                self(*args, **kwargs)
                self._optimized.wait(max(0.0, min(_WAIT_S, end_s - time.monotonic())))
        return self


def optimize(function: Callable[..., Any], *example: Any, cores: Cores = None, backends: bool = True) -> OptimizedCall:
    """Return a callable that does what `function` (a module or a plain function) does, faster where a way is found.

    It is for inference: results carry no gradients. The calls themselves measure and plan, and lose no more time by it
    than the setting `engine.tuning_share` allows. With `example` arguments this begins at once, in calls with them for
    some `EXAMPLE_S` seconds; `learn` goes on until nothing is left to learn. `cores` is the number of cores to use, or
    their CPU numbers (None: all that this process may use). A number takes those that the fewest other models of the
    process use; calls of models on different cores run at the same time.

    A module in eval mode is also tried with ONNX Runtime, OpenVINO (where installed) and `torch.compile`. The fastest
    of all is kept. `backends=False` leaves the three out. They work on copies of the weights, and are left for good
    once the weights were written to. Write under `torch.no_grad()`: a write by way of `.data` or NumPy that changes few
    elements may be missed.

    A call that cannot be captured as a whole (control flow that depends on data, hooks, unknown operators) runs in
    PyTorch as before, with a warning that says why; `torch.compile` divides it into parts, which may run by plans.
    """
    machine = _machine(cores)
    call = OptimizedCall(function, machine, backends=backends, most=None if cores is None else len(machine))
    if example:
        call.learn(*example, at_most_s=EXAMPLE_S)
    return call


def optimize_training(
    model: nn.Module, loss: Callable[[Any, Any], Tensor] | None, optimizer: Optimizer, *example: Any,
    cores: Cores = None, clip_grad_norm: float | None = None, accumulate: int = 1, keep_grads: bool = False,
    scaler: GradScaler | None = None,
) -> OptimizedStep:  # fmt: skip
    """Return `step(*inputs, target) -> loss`: computes `loss(model(*inputs), target)`, its gradients and the update.

    Named arguments go to the model: `step(x, target, mask=mask)`. Without `loss` all arguments do, and the model
    returns the loss: `step(**batch)` with `model(**batch).loss`. Any optimizer may be used. Updates by SGD, Adam and
    AdamW are planned with the rest of the step; others, and those with one of the following, run as in PyTorch after a
    plan of the gradients.

    `clip_grad_norm` is the largest norm of all gradients together. With `accumulate` above 1 parameters change only
    after so many steps, by the mean of their gradients; `step.update()` changes them before. `keep_grads` leaves the
    gradients in `.grad` until the next step. `scaler` is a `torch.amp.GradScaler("cpu")`.

    The first steps measure, and train as all others do. An `example` (inputs, then the target) is captured before this
    returns; nothing is trained on it. `cores` is the number of cores to use, or their CPU numbers, as for `optimize`.
    InvalidInput for an example that lacks inputs or target, and for numbers that make no sense.
    """
    if example and loss is not None and len(example) < 2:
        raise InvalidInput("the example must be the inputs and then the target")
    update = ParameterUpdate(
        model=model, optimizer=optimizer, clip_grad_norm=clip_grad_norm, accumulate=accumulate,
        keep_grads=keep_grads, scaler=scaler,
    )  # fmt: skip
    machine = _machine(cores)
    most = None if cores is None else len(machine)
    step = OptimizedStep(model, BatchLoss(loss, accumulate), update, machine, most=most)
    if example:
        step.prepare(*example)
    return step


def _machine(cores: Cores) -> Machine:
    keep_freed_memory()
    load_fake_tensors()
    return core_choice().machine(cores)
