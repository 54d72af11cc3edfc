"""What a training loop does around the gradients: accumulation, clipping, a GradScaler, and the optimizer's step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from threadcast.core.arguments import check, check_switch, is_number, is_whole
from threadcast.core.errors import InvalidInput
from threadcast.runtime.watching.hooks import why_update_apart


@dataclass(slots=True, kw_only=True, eq=False)
class ParameterUpdate:
    """Updates parameters from gradients as a loop of PyTorch does; all operators are PyTorch's.

    Gradients of `accumulate` batches are added up before each update. `clip_grad_norm` is the largest norm that all of
    the model's gradients have together. With `keep_grads` they stay in `.grad` until the next batch.
    """

    model: nn.Module
    optimizer: Optimizer
    clip_grad_norm: float | None = None
    accumulate: int = 1
    keep_grads: bool = False
    scaler: GradScaler | None = None
    pending: int = field(default=0, init=False)
    """Number of batches whose gradients are in `.grad` and wait for an update."""

    def __post_init__(self) -> None:
        check(is_whole(self.accumulate), "accumulate", self.accumulate, "a number of batches, at least 1")
        clip, keep, scaler = self.clip_grad_norm, self.keep_grads, self.scaler
        check(clip is None or (is_number(clip) and clip > 0), "clip_grad_norm", clip, "a number above 0")
        check_switch("keep_grads", keep)
        scales = hasattr(scaler, "is_enabled") and not isinstance(scaler, type)
        check(scaler is None or scales, "scaler", scaler, 'a torch.amp.GradScaler("cpu")')
        if _needs_closure(self.optimizer) and (self.accumulate > 1 or self.scaler is not None):
            raise InvalidInput(
                f"{type(self.optimizer).__name__} computes gradients several times for one update, so neither "
                "accumulate nor scaler can be used with it"
            )

    @property
    def is_whole(self) -> bool:
        """Whether each batch has an update of its own, by clipping and the optimizer's step, and no gradients stay."""
        return (
            self.accumulate == 1 and not self.keep_grads and self.scaler is None and not _needs_closure(self.optimizer)
        )

    @property
    def scale(self) -> Tensor | None:
        """What the loss is multiplied by before it is differentiated; None: by nothing."""
        if self.scaler is None or not self.scaler.is_enabled():
            return None
        scaled: Tensor = self.scaler.scale(torch.ones(()))
        return scaled

    @property
    def why_not_set_back(self) -> str | None:
        """Why all that an update changes cannot be set back; None where it can."""
        for one, of in ((self.optimizer, "torch.optim."), (self.scaler, "torch.")):
            if one is not None and (not type(one).__module__.startswith(of) or _needs_closure(one)):
                return f"what a step of {type(one).__name__} changes cannot be set back"
        return why_update_apart(self.optimizer)

    @property
    def holds(self) -> list[Any]:
        """The dictionaries and lists in which optimizer and scaler keep what a step changes."""
        optimizer, scaler = self.optimizer, {} if self.scaler is None else vars(self.scaler)
        return [vars(optimizer), *_containers([optimizer.state, optimizer.param_groups, scaler])]

    def step(self, differentiate: Callable[[], Tensor]) -> Tensor:
        """Call `differentiate`, which adds gradients to `.grad` and returns a loss; update when they are complete.

        Returns the loss. An optimizer whose `step` needs a closure calls `differentiate` as often as it likes.
        """
        if _needs_closure(self.optimizer):
            return self._step_with_closure(differentiate)
        if not self.pending:
            self.optimizer.zero_grad()
        loss = differentiate()
        self.pending += 1
        if self.pending >= self.accumulate:
            self.apply()
        return loss

    def apply(self) -> None:
        """Update parameters from the gradients that are there; nothing happens where there are none."""
        if not self.pending:
            return
        self.pending = 0
        if self.clip_grad_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        order_as_weights(self.optimizer)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self._drop_gradients()

    def _step_with_closure(self, differentiate: Callable[[], Tensor]) -> Tensor:
        losses = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            losses.append(differentiate())
            if self.clip_grad_norm is not None:
                clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
            return losses[-1]

        self.optimizer.step(closure)  # type: ignore[arg-type]  # a tensor, as PyTorch's own examples return
        self._drop_gradients()
        return losses[0]

    def _drop_gradients(self) -> None:
        if not self.keep_grads:
            self.optimizer.zero_grad()


def order_as_weights(optimizer: Optimizer) -> None:
    """Give gradients and state of weights of four dimensions the order of their weight, where fused kernels come next.

    These kernels walk through memory, whatever strides say. A gradient may have been made in another memory format, and
    another call of the model, such as one by `optimize`, may have put the weight into another one.
    """
    fused = [group["params"] for group in optimizer.param_groups if group.get("fused")]
    for weight in (weight for weights in fused for weight in weights if weight.dim() == 4) if fused else ():
        for tensor in (weight.grad, *optimizer.state.get(weight, {}).values()):
            if isinstance(tensor, Tensor) and _lies_otherwise(tensor, weight):
                tensor.data = torch.empty_like(weight.detach(), dtype=tensor.dtype).copy_(tensor.detach())


def _lies_otherwise(tensor: Tensor, weight: Tensor) -> bool:
    """Whether a tensor of the weight's shape has its numbers in another order in memory."""
    if tensor.layout is not torch.strided or tensor.shape != weight.shape:
        return False
    sides = zip(weight.shape, tensor.stride(), weight.stride(), strict=True)
    return any(one != other for size, one, other in sides if size > 1)


def _containers(value: Any) -> Iterator[Any]:
    """The dictionaries and lists in a value, itself included."""
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item)


def _needs_closure(optimizer: Any) -> bool:
    """Whether the optimizer's `step` must be given a function that computes the gradients, as that of LBFGS."""
    try:
        parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0].name == "closure" and parameters[0].default is inspect.Parameter.empty
