"""Optimizer updates as one operator call a parameter, so that each is a task of its own.

PyTorch's fused kernels serve one parameter at a time; their results agree with `optimizer.step()`.
State lives where the optimizer keeps it (`optimizer.state`), so `state_dict` and checkpoints work as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from threadcast.core.errors import CaptureError

STATE_NAMES: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum_buffer",),
    Adam: ("exp_avg", "exp_avg_sq", "step"),
    AdamW: ("exp_avg", "exp_avg_sq", "step"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """How one parameter is updated: its group's settings and the names of its state tensors, in call order."""

    kind: type[Optimizer]
    group: dict[str, Any]
    state_names: tuple[str, ...]

    def apply(self, parameter: Tensor, gradient: Tensor, state: list[Tensor], rate: Tensor) -> None:
        """Update `parameter` and `state` in place; `rate` is a scalar float tensor, the learning rate."""
        group = self.group
        if gradient.stride() != parameter.stride():  # the kernels walk through memory, whatever the strides say
            gradient = torch.empty_like(parameter).copy_(gradient)
        if self.kind is SGD:
            torch._fused_sgd_(
                [parameter], [gradient], state, weight_decay=group["weight_decay"], momentum=group["momentum"],
                lr=rate, dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"],
                is_first_step=False,
            )  # fmt: skip
            return
        step, moments = state[-1], state[:-1]
        step.add_(1)
        fused: Callable[..., None] = torch._fused_adamw_ if self.kind is AdamW else torch._fused_adam_
        fused(
            [parameter], [gradient], [moments[0]], [moments[1]], [], [step], lr=rate, beta1=group["betas"][0],
            beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False,
            maximize=group["maximize"],
        )  # fmt: skip


def updates_of(optimizer: Optimizer) -> dict[Tensor, Update]:
    """How `optimizer` updates each of its parameters; CaptureError for what the fused kernels do not do."""
    kind = type(optimizer)
    if kind not in STATE_NAMES:
        known = ", ".join(known.__name__ for known in STATE_NAMES)
        raise CaptureError(f"optimizer {kind.__name__} cannot be captured; use one of {known}")
    found = {}
    for group in optimizer.param_groups:
        for setting in ("amsgrad", "differentiable"):
            if group.get(setting):
                raise CaptureError(f"{kind.__name__}({setting}=True) cannot be captured; set it to False")
        if kind is SGD and group["dampening"] != 0:
            raise CaptureError(f"SGD(dampening={group['dampening']}) cannot be captured; set it to 0")
        names = STATE_NAMES[kind] if kind is not SGD or group["momentum"] != 0 else ()
        found.update({parameter: Update(kind, group, names) for parameter in group["params"]})
    return found


def ready_state(optimizer: Optimizer, parameter: Tensor, update: Update) -> list[Tensor]:
    """The parameter's state tensors, made as the optimizer's first step would make them where they are missing."""
    state = optimizer.state[parameter]
    for name in update.state_names:
        if state.get(name) is None:
            zero = torch.zeros((), dtype=torch.float32) if name == "step" else torch.zeros_like(parameter)
            state[name] = zero.detach()
        elif name != "step" and state[name].stride() != parameter.stride():  # the model has changed its layout since
            state[name] = torch.empty_like(parameter).detach().copy_(state[name])
    return [state[name] for name in update.state_names]
