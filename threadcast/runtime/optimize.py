"""The two calls for somebody whose PyTorch model runs on CPU cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from threadcast.capture.capture import Captured, capture_forward, capture_training
from threadcast.core import Machine, read_machine
from threadcast.core.errors import InvalidInput
from threadcast.runtime.backends.contenders import contenders
from threadcast.runtime.backends.ways import installed
from threadcast.runtime.optimized import Optimized
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.tuning.contender import Contender
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.verification.shadow import Shadowed, leaves
from threadcast.threads.memory import keep_freed_memory


class _OptimizedModel:
    """What optimised calls and steps have in common: reports, cores and the end."""

    _optimized: Optimized

    @property
    def reports(self) -> list[Report]:
        """What runs each kind of arguments, in the order in which they first came."""
        return self._optimized.reports

    @property
    def fastest(self) -> list[Contender]:
        """What ran fastest when last compared, of each kind of arguments that could be captured."""
        return self._optimized.fastest

    def resize(self, cores: int | Iterable[int] | None) -> tuple[tuple[int, ...], ...]:
        """Use so many cores, or those of these CPUs, from the next operator boundary; None: all that the process has.

        From any thread; a call or training step under way goes on with them, and its result is the same. Returns the
        CPUs of the cores in use. InvalidInput for none, and for cores that this process has not.
        """
        return tuple(core.cpus for core in self._optimized.cores.resize(cores))

    def close(self) -> None:
        """End its threads; a later call measures anew."""
        self._optimized.close()


class OptimizedCall(_OptimizedModel):
    """A callable with the signature of `function`; `reports` say what runs it, `close` ends its threads.

    Results carry no gradients. The first calls measure (some 20 for each memory format and pair of thread counts).
    """

    def __init__(
        self, function: Callable[..., Any], machine: Machine, *, backends: bool, most: int | None = None
    ) -> None:
        model = function if isinstance(function, nn.Module) else None

        def default(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with torch.no_grad():
                return function(*args, **kwargs)

        def capture(arguments: tuple[Any, ...], model_format: ModelFormat) -> Captured:
            if model is None:
                return capture_forward(lambda args, kwargs: function(*args, **kwargs), *arguments)
            return capture_forward(_Formatted(model, model_format), *arguments)

        def rivals(arguments: tuple[Any, ...], cores: int) -> Iterable[Contender]:
            return contenders(model, arguments, cores) if backends and model is not None else ()

        def trace(model_format: ModelFormat, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with torch.no_grad():
                function(*args, **kwargs) if model is None else _Formatted(model, model_format)(args, kwargs)

        name = f"inference of {_described(function)}"
        among = installed() if backends else ""
        shadowed = Shadowed(default, trace, model, None, leaves)
        self._optimized = Optimized(
            shadowed,
            capture,
            machine,
            name=name,
            watched=(model, None),
            functions=(function,),
            rivals=rivals,
            among=among,
            most=most,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimized(args, kwargs)


class OptimizedStep(_OptimizedModel):
    """One training step: `step(*inputs, target)` returns the loss; `reports`, `resize`, `close` as of `OptimizedCall`.

    It does what `loss(model(*inputs), target)`, `backward` and the optimizer's `step` do, but leaves no `.grad`.
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[Any, Any], Tensor], optimizer: Optimizer, machine: Machine, *,
        most: int | None = None,
    ) -> None:  # fmt: skip
        def default(*arguments: Any) -> Tensor:
            *inputs, target = arguments
            optimizer.zero_grad(set_to_none=True)
            value = loss(model(*inputs), target)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return value.detach()

        def capture(arguments: tuple[Any, ...], model_format: ModelFormat) -> Captured:
            *inputs, target = arguments
            return capture_training(_Formatted(model, model_format), loss, optimizer, (tuple(inputs), {}), target)

        def trace(model_format: ModelFormat, *arguments: Any) -> None:
            *inputs, target = arguments
            value = loss(_Formatted(model, model_format)(tuple(inputs), {}), target)
            torch.autograd.grad(value, [p for p in model.parameters() if p.requires_grad], allow_unused=True)

        shadowed = Shadowed(default, trace, model, optimizer, lambda result: {"loss": _loss_of(result)})
        name = f"training of {_described(model)} by {type(optimizer).__name__}"
        self._optimized = Optimized(
            shadowed, capture, machine, name=name, watched=(model, optimizer), functions=(loss,), most=most
        )

    def __call__(self, *arguments: Any) -> Tensor:
        return _loss_of(self._optimized(*arguments))

    def prepare(self, *arguments: Any) -> None:
        """Capture the step for such arguments; nothing is trained."""
        self._optimized.prepare(*arguments)


def optimize(
    function: Callable[..., Any], *example: Any, cores: int | None = None, backends: bool = True
) -> OptimizedCall:
    """Return `function`, a module or a plain function, as a callable that is faster or runs as before.

    It is for inference: results carry no gradients. With an `example` of arguments, measuring and planning happen at
    once, on that; else on the first calls. `cores` are those to use (None: all that this process may use). A module in
    eval mode is also given to ONNX Runtime, OpenVINO (where installed) and `torch.compile`, and the fastest is kept;
    making them can take a minute. `backends=False` leaves them out. They work on copies of the weights, which are made
    anew after writes; write under `torch.no_grad()`, since what changes few elements by way of `.data` or NumPy may be
    missed. What cannot be captured (control flow by data, hooks, unknown operators) runs as PyTorch does, with a
    warning that says why.
    """
    made = OptimizedCall(function, _machine(cores), backends=backends, most=cores)
    if example:
        for _ in range(2):  # the first call may fill caches of the model's
            made(*example)
        while any(report.measuring for report in made.reports):
            made(*example)
    return made


def optimize_training(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    optimizer: Optimizer,
    *example: Any,
    cores: int | None = None,
) -> OptimizedStep:
    """Return `step(*inputs, target) -> loss` for `loss(model(*inputs), target)`, its gradients and the update.

    SGD, Adam and AdamW are known. The first steps measure; all of them train. `example` (inputs, then the target) is
    only checked to be capturable: nothing is trained on it. InvalidInput for an example without inputs and target.
    """
    if example and len(example) < 2:
        raise InvalidInput("the example must be the inputs and then the target")
    step = OptimizedStep(model, loss, optimizer, _machine(cores), most=cores)
    if example:
        step.prepare(*example)
    return step


def _loss_of(result: Tensor | dict[str, Any]) -> Tensor:
    """The loss of a step that eager PyTorch ran, or a plan."""
    return result["loss"] if isinstance(result, dict) else result


def _machine(cores: int | None) -> Machine:
    keep_freed_memory()
    return read_machine(cores=cores)


def _described(function: Callable[..., Any]) -> str:
    """A text that differs between models, and is the same in the next process."""
    if not isinstance(function, nn.Module):
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    if any(map(is_lazy, function.parameters())):
        raise InvalidInput("the model has parameters that have no shape yet: call it once before it is optimised")
    parameters = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in function.named_parameters()]
    return f"{type(function).__qualname__} {parameters} {function.training}"


class _Formatted(nn.Module):
    """Calls a module with positional and keyword arguments that come as two values, in its current memory format."""

    def __init__(self, module: nn.Module, model_format: ModelFormat) -> None:
        super().__init__()
        self.module = module
        self._format = model_format

    def forward(self, args: Any, kwargs: Any) -> Any:
        args, kwargs = self._format.arguments((args, kwargs))
        return self.module(*args, **kwargs)
