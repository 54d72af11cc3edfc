"""A training step that runs by one plan, or its gradients by a plan and the optimizer's update as in PyTorch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, Optimizer

from threadcast.capture.graph.capture import capture_step
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.optimizers import NoUpdate
from threadcast.core import Machine
from threadcast.core.settings import Settings
from threadcast.runtime.calls.fallback import UpdateApart
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.check.shadow import Shadowed
from threadcast.runtime.doors.optimized import Optimized
from threadcast.runtime.doors.optimized_model import Formatted, OptimizedModel, described, short_name
from threadcast.runtime.doors.own_calls import OwnCalls
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.standings import WORTH
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.updates.batch_loss import BatchLoss
from threadcast.runtime.updates.first_update import FirstUpdate
from threadcast.runtime.updates.fused_updates import fused_updates
from threadcast.runtime.updates.parameter_update import ParameterUpdate, order_as_weights
from threadcast.threads.this_process import this_process

_logger = logging.getLogger("threadcast")


class OptimizedStep(OptimizedModel):
    """A callable that does one training step: `step(*inputs, target)` returns the loss, a tensor without gradient.

    A step does what `zero_grad`, `loss(model(*inputs), target)`, `backward`, the optimizer's `step` and `zero_grad` do,
    and what `update` adds to them. It is one graph where the optimizer's update can be part of it. Otherwise the
    gradients are one graph, and what follows runs as in PyTorch; `update_by` says which of both.
    `reports`, `resize` and `close` work as those of `OptimizedCall`.
    """

    def __init__(
        self, model: nn.Module, loss: BatchLoss, update: ParameterUpdate, machine: Machine, *, most: int | None = None
    ) -> None:
        self._model, self._loss, self._update, self._machine, self._most = model, loss, update, machine, most
        self._title = f"training of {short_name(model)} by {type(update.optimizer).__name__}"
        self.update_by = "the plan of the step"
        """What updates the parameters: the plan of the step, or PyTorch, and why."""
        self._apart = not update.is_whole
        if self._apart:
            self.update_by = "PyTorch: it does more than clip gradients and make the optimizer's step"
        self._optimized = self._gradients() if self._apart else self._whole_step()
        self._first = FirstUpdate(update.optimizer)
        self._steps = this_process().steps

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if not self._apart:
            if self._optimized.rests:
                return self._optimized(args, kwargs)  # type: ignore[no-any-return]
            try:
                with self._first:
                    return _loss_of(self._optimized(args, kwargs))
            except UpdateApart as reason:
                self._take_apart(str(reason))
        with self._steps.step():
            return self._update.step(lambda: self._differentiated(args, kwargs))

    def update(self) -> None:
        """Update now from the gradients of fewer batches than `accumulate`, as at the end of an epoch.

        Each gradient is divided by `accumulate` all the same, as in loops that divide each loss by it. Nothing happens
        where no batch came since the last update.
        """
        self._update.apply()

    def prepare(self, *args: Any, **kwargs: Any) -> bool:
        """Capture the step for arguments of this kind (inputs, then the target). Nothing is trained.

        Returns whether there is a graph.
        """
        with self._first.awaited():
            try:
                found = self._optimized.prepare(*((args, kwargs) if not self._apart else self._data(args, kwargs)))
            except UpdateApart as reason:
                self._take_apart(str(reason))
                found = self._optimized.prepare(*self._data(args, kwargs))
            self._optimized.put_back()
        return isinstance(found, Tuning)

    def learn_from(self, *args: Any, seconds: float, progress: bool) -> None:
        """Learn for some seconds, in steps with these arguments (inputs, then the target), which are all set back.

        Where they cannot be, the step is only captured, and a warning says why.
        """
        own = OwnCalls(self._model, (args, {}), besides=self._loss.functions, update=self._update)

        def begin() -> bool:
            captured, made = self.prepare(*args), self._first.entries
            tensors = (value for entries in made.values() for value in entries.values())
            own.include(tensors, then=partial(setattr, self._first, "entries", made))
            return captured

        with self._showing(progress, seconds):
            if own.refused is None:
                self._learn(own, lambda: self(*args), seconds=seconds, least_gain=WORTH, begin=begin)
            elif self.prepare(*args):
                text = f"threadcast only captures the step of this example, and learns in your steps: {own.refused}"
                warnings.warn(text, stacklevel=3)

    def _differentiated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Add the gradients of one batch to `.grad`, and return its loss."""
        return _loss_of(self._optimized(*self._data(args, kwargs)))

    def _data(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        scale = self._update.scale
        return (args, kwargs) if scale is None else (args, kwargs, scale)

    def _take_apart(self, reason: str) -> None:
        """From now on the graph of a step ends with the gradients."""
        _logger.info("%s: PyTorch updates the parameters: %s", self._title, reason)
        self._optimized.close()
        self._apart, self.update_by = True, f"PyTorch: {reason}"
        self._optimized = self._gradients()

    def _whole_step(self) -> Optimized:
        model, loss, optimizer, most_norm = self._model, self._loss, self._update.optimizer, self._update.clip_grad_norm

        def default(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            optimizer.zero_grad()
            found, value = loss(model, args, kwargs)
            value.backward()  # type: ignore[no-untyped-call]
            if most_norm is not None:
                clip_grad_norm_(model.parameters(), most_norm)
            order_as_weights(optimizer)
            optimizer.step()
            optimizer.zero_grad()
            return _detached(found)

        name = f"training of {described(model)} by {type(optimizer).__name__}"
        if most_norm is not None:
            name += ", gradients clipped"
        return self._made(default, optimizer, name, most_norm=most_norm)

    def _gradients(self) -> Optimized:
        model, loss, optimizer = self._model, self._loss, self._update.optimizer
        if Settings.read()["engine.fuse"]:
            fused_updates().adopt(model.parameters())

        def default(args: tuple[Any, ...], kwargs: dict[str, Any], scale: Tensor | None = None) -> Tensor:
            found, value = loss(model, args, kwargs, scale)
            value.backward()  # type: ignore[no-untyped-call]
            return _detached(found)

        name = f"gradients of {described(model)}"
        return self._made(
            default, NoUpdate(), name, formats=_formats_for(optimizer), reordered=optimizer, is_step=False
        )

    def _made(
        self, default: Callable[..., Tensor], optimizer: Optimizer, name: str, *, most_norm: float | None = None,
        **options: Any,
    ) -> Optimized:  # fmt: skip
        model, loss = self._model, self._loss

        def objective(formatted: nn.Module, *data: Any) -> tuple[dict[str, Any], Tensor]:
            return loss.of(formatted, *data)

        def capture(data: tuple[Any, ...], model_format: ModelFormat) -> Captured:
            return capture_step(
                Formatted(model, model_format), objective, optimizer, data, functions=loss.functions,
                most_norm=most_norm,
            )  # fmt: skip

        def trace(model_format: ModelFormat, *data: Any) -> None:
            value = objective(Formatted(model, model_format), *data)[1]
            torch.autograd.grad(value, [p for p in model.parameters() if p.requires_grad], allow_unused=True)

        shadowed = Shadowed(default, trace, model, optimizer, lambda result: {"loss": _loss_of(result)})
        spec = CallSpec(
            shadowed=shadowed, capture=capture, name=name, title=self._title, watched=(model, optimizer),
            functions=loss.functions, most=self._most, **options,
        )  # fmt: skip
        return Optimized(spec, self._machine)


def _formats_for(optimizer: Optimizer) -> tuple[MemoryFormat, ...] | None:
    """The memory formats to try, None for any: only the given one where an optimizer may rely on tensors' strides.

    Fused updates do: they take gradients for as ordered as their parameter, but steps that are compared are made in the
    format as given.
    """
    known = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
    fused = any(group.get("fused") for group in optimizer.param_groups)
    return None if known and not fused else (MemoryFormat.AS_GIVEN,)


def _detached(result: dict[str, Any]) -> Tensor:
    loss: Tensor = result["loss"]
    return loss.detach()


def _loss_of(result: Tensor | dict[str, Any]) -> Tensor:
    """The loss in the result of a step: a tensor from eager PyTorch, a dictionary from a plan."""
    return result["loss"] if isinstance(result, dict) else result
