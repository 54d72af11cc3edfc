"""`optimize` and `optimize_training`: make a PyTorch model's inference or training step on CPU cores faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self, SupportsIndex

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from threadcast.capture.capture import Captured, capture_forward, capture_training
from threadcast.capture.fake_tensors import load_fake_tensors
from threadcast.capture.sizes import Dynamic
from threadcast.core import Machine, read_machine
from threadcast.core.atomic_file import replacing
from threadcast.core.errors import InvalidInput, NotCopyable
from threadcast.core.settings import Settings
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.backends.search_slot import SearchSlot
from threadcast.runtime.backends.ways import installed
from threadcast.runtime.optimized import Optimized
from threadcast.runtime.parts import Backend
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.short_calls import TIMED
from threadcast.runtime.traced_step import timeline_page
from threadcast.runtime.tuning.contender import Contender, MakeBackends
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.verification.shadow import Shadowed, leaves
from threadcast.threads.memory import keep_freed_memory
from threadcast.threads.this_process import this_process

LEAST_SHARE = 0.01
"""Least share of a core that the search for backends gets; it is at work only with `backends`."""
EXAMPLE_S = 2.0
"""Seconds for which `optimize` learns from an example before it returns. A convention."""

_WAIT_S = 1.0
"""Longest time in seconds between two calls of `learn`, which leaves the cores to a search for backends."""


class _OptimizedModel:
    """What optimised calls and training steps have in common: reports, the choice of cores, and `close`."""

    _optimized: Optimized
    _title: str
    """What is run, for people: "training of Net by SGD"."""

    def __repr__(self) -> str:
        """Return what is run and how, one state for each kind of arguments."""
        states = "; ".join(_state(report) for report in self.reports) or "not called yet"
        return f"{type(self).__name__}({self._title}: {states})"

    @property
    def reports(self) -> list[Report]:
        """One report for each kind of arguments (shapes, types, modes): what runs it and why. In order of first use."""
        return self._optimized.reports

    @property
    def fastest(self) -> list[Contender]:
        """The fastest contender of the last comparison, one for each kind of arguments that could be captured."""
        return self._optimized.fastest

    def resize(self, cores: int | Iterable[int] | None) -> tuple[tuple[int, ...], ...]:
        """Use this number of cores, or the cores of these CPU numbers; None: all that the process may use.

        May be called from any thread. A call or training step that is running goes on with the new cores from its next
        operator on; its result is the same. Returns the cores in use, each as the tuple of its CPU numbers.
        InvalidInput for no core, and for cores that this process may not use.
        """
        return tuple(core.cpus for core in self._optimized.cores.resize(cores))

    def _learning(self) -> str:
        """What is still being learned, in one line; empty where nothing is. May be called from any thread."""
        learning = [_state(report) for report in self.reports if report.measuring]
        return f"{self._title}: {'; '.join(learning)}" if learning else ""

    def timeline(self, path: Path | str) -> None:
        """Write an HTML page without links to other files: the plan that ran the last call, and when its operators ran.

        For that, three more steps run on the arguments with which the call was captured; model, optimizer, gradients
        and random state are then restored. ExecutionError while no plan runs, and where memory is too small to
        restore.
        """
        step = self._optimized.traced_step()
        with replacing(Path(path)) as draft:
            draft.write_text(timeline_page(f"threadcast: {self._title}", step), encoding="utf-8")

    def close(self) -> None:
        """End the threads that run the model; a later call measures anew."""
        self._optimized.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise NotCopyable: plans and threads belong to one model in one process."""
        raise NotCopyable(
            f"{type(self).__name__} cannot be copied or pickled: its plans and threads belong to one model in this "
            "process. Copy the model (copy.deepcopy) or save its state_dict(), and optimise that model where it is used"
        )


class OptimizedCall(_OptimizedModel):
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
            return capture_forward(_Formatted(model, model_format), *arguments, dynamic=dynamic)

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
                function(*args, **kwargs) if model is None else _Formatted(model, model_format)(args, kwargs)

        def divide(backend: Backend) -> Callable[..., Any]:
            compiled = torch.compile(function, backend=backend)

            def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                with torch.no_grad():
                    return compiled(*args, **kwargs)

            return call

        self._title = f"inference of {_short_name(function)}"
        name = f"inference of {_described(function)}"
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


class OptimizedStep(_OptimizedModel):
    """A callable that does one training step: `step(*inputs, target)` returns the loss, a tensor without gradient.

    A step does what `zero_grad`, `loss(model(*inputs), target)`, `backward`, the optimizer's `step` and `zero_grad` do.
    `reports`, `resize` and `close` work as those of `OptimizedCall`.
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[Any, Any], Tensor], optimizer: Optimizer, machine: Machine, *,
        most: int | None = None,
    ) -> None:  # fmt: skip
        def default(*arguments: Any, run: Callable[..., Any] = model) -> Tensor:
            *inputs, target = arguments
            optimizer.zero_grad(set_to_none=True)
            value = loss(run(*inputs), target)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return value.detach()

        def divide(backend: Backend) -> Callable[..., Any]:
            return partial(default, run=torch.compile(model, backend=backend))

        def capture(arguments: tuple[Any, ...], model_format: ModelFormat, dynamic: Dynamic | None) -> Captured:
            *inputs, target = arguments
            formatted = _Formatted(model, model_format)
            return capture_training(formatted, loss, optimizer, (tuple(inputs), {}), target, dynamic=dynamic)

        def trace(model_format: ModelFormat, *arguments: Any) -> None:
            *inputs, target = arguments
            value = loss(_Formatted(model, model_format)(tuple(inputs), {}), target)
            torch.autograd.grad(value, [p for p in model.parameters() if p.requires_grad], allow_unused=True)

        shadowed = Shadowed(default, trace, model, optimizer, lambda result: {"loss": _loss_of(result)})
        self._title = f"training of {_short_name(model)} by {type(optimizer).__name__}"
        name = f"training of {_described(model)} by {type(optimizer).__name__}"
        self._optimized = Optimized(
            shadowed, capture, machine, name=name, title=self._title, watched=(model, optimizer), functions=(loss,),
            most=most, divide=divide,
        )  # fmt: skip
        this_process().steps.ask_learning(self._learning)

    def __call__(self, *arguments: Any) -> Tensor:
        return _loss_of(self._optimized(*arguments))

    def prepare(self, *arguments: Any) -> None:
        """Capture the step for arguments of this kind (inputs, then the target). Nothing is trained."""
        self._optimized.prepare(*arguments)


def optimize(
    function: Callable[..., Any], *example: Any, cores: int | None = None, backends: bool = True
) -> OptimizedCall:
    """Return a callable that does what `function` (a module or a plain function) does, faster where a way is found.

    It is for inference: results carry no gradients. The calls themselves measure and plan, and lose no more time by it
    than the setting `engine.tuning_share` allows. With `example` arguments this begins at once, in calls with them for
    some `EXAMPLE_S` seconds; `learn` goes on until nothing is left to learn. `cores` is the number of cores to use
    (None: all that this process may use).

    A module in eval mode is also tried with ONNX Runtime, OpenVINO (where installed) and `torch.compile`. The fastest
    of all is kept. `backends=False` leaves the three out. They work on copies of the weights, and are left for good
    once the weights were written to. Write under `torch.no_grad()`: a write by way of `.data` or NumPy that changes few
    elements may be missed.

    A call that cannot be captured as a whole (control flow that depends on data, hooks, unknown operators) runs in
    PyTorch as before, with a warning that says why; `torch.compile` divides it into parts, which may run by plans.
    """
    call = OptimizedCall(function, _machine(cores), backends=backends, most=cores)
    if example:
        call.learn(*example, at_most_s=EXAMPLE_S)
    return call


def optimize_training(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], optimizer: Optimizer, *example: Any, cores: int | None = None
) -> OptimizedStep:
    """Return `step(*inputs, target) -> loss`: computes `loss(model(*inputs), target)`, its gradients and the update.

    The optimizer may be SGD, Adam or AdamW. The first steps measure, and train as all others do. An `example` (inputs,
    then the target) is captured before this returns; nothing is trained on it. `cores` is the number of cores to use
    (None: all that this process may use). InvalidInput for an example that lacks inputs or target.
    """
    if example and len(example) < 2:
        raise InvalidInput("the example must be the inputs and then the target")
    step = OptimizedStep(model, loss, optimizer, _machine(cores), most=cores)
    if example:
        step.prepare(*example)
    return step


def _loss_of(result: Tensor | dict[str, Any]) -> Tensor:
    """The loss in the result of a step: a tensor from eager PyTorch, a dictionary from a plan."""
    return result["loss"] if isinstance(result, dict) else result


def _machine(cores: int | None) -> Machine:
    keep_freed_memory()
    load_fake_tensors()
    return read_machine(cores=cores)


def _short_name(function: Callable[..., Any]) -> str:
    """The name of a function, or of a model's class."""
    return type(function).__name__ if isinstance(function, nn.Module) else getattr(function, "__name__", repr(function))


def _state(report: Report) -> str:
    """What runs the calls of one kind, how many there were, and how far they are behind PyTorch or ahead of it."""
    if report.runs == "default" and report.reason:
        return f"default, {report.reason}"
    warm_up = report.warm_up
    said = [report.runs]
    if warm_up.calls:
        said.append("1 call" if warm_up.calls == 1 else f"{warm_up.calls:,} calls")
    if warm_up.eager_s is not None:
        said.append(f"{abs(warm_up.gained_s):.2f} s {'behind' if warm_up.gained_s < 0 else 'ahead of'} eager")
    return ", ".join(said)


def _described(function: Callable[..., Any]) -> str:
    """A text that identifies the model or function, the same in every process."""
    if not isinstance(function, nn.Module):
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    if any(map(is_lazy, function.parameters())):
        raise InvalidInput("the model has parameters that have no shape yet: call it once before it is optimised")
    parameters = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in function.named_parameters()]
    return f"{type(function).__qualname__} {parameters} {function.training}"


class _Formatted(nn.Module):
    """Calls a module with a tuple of positional and a dictionary of keyword arguments, in its current memory format."""

    def __init__(self, module: nn.Module, model_format: ModelFormat) -> None:
        super().__init__()
        self.module = module
        self._format = model_format

    def forward(self, args: Any, kwargs: Any) -> Any:
        args, kwargs = self._format.arguments((args, kwargs))
        return self.module(*args, **kwargs)
