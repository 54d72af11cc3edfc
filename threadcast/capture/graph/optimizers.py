"""Optimizer updates parameter by parameter, so that each is a task of its own.

An update is one call of PyTorch's fused kernel, where that gives the optimizer's own result (`may_be_fused`). State
stays in `optimizer.state`, so `state_dict` and checkpoints work as before. Numbers such as learning rates are inputs of
the graph (`SettingInputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from threadcast.core.errors import CaptureError

aten = torch.ops.aten

_ADAM_NUMBERS = ("lr", "betas", "eps", "weight_decay")
_ADAM_CHOICES = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay")

NUMBERS: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("lr", "momentum", "dampening", "weight_decay"), Adam: _ADAM_NUMBERS, AdamW: _ADAM_NUMBERS,
}  # fmt: skip
"""Names of the settings that are inputs of the graph, by optimizer."""

CHOICES: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("nesterov", "maximize", "foreach", "differentiable", "fused"), Adam: _ADAM_CHOICES, AdamW: _ADAM_CHOICES,
}  # fmt: skip
"""Names of the settings that decide what is computed, by optimizer: another value needs another graph."""

KERNEL_TYPES = (torch.float32, torch.float64)
"""Types of parameters that PyTorch's fused kernels update as its loops do."""

_DECIDES_BY_ZERO = ("momentum", "dampening", "weight_decay")
"""Numbers that an optimizer compares with 0."""


class OptimizerRefused(CaptureError):
    """The optimizer's update cannot be part of a graph. The gradients may have a graph of their own (`NoUpdate`)."""


class NoUpdate(Optimizer):
    """An optimizer of no parameters: a step with it adds to the `.grad` of all parameters and updates none."""

    def __init__(self) -> None:
        super().__init__([{"params": []}], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """How the parameters of one group are updated, and the names of each one's state tensors, in call order."""

    kind: type[Optimizer]
    group: dict[str, Any]
    state_names: tuple[str, ...]

    def record(
        self, parameter: Tensor, gradient: Tensor, state: Sequence[Tensor], numbers: Mapping[str, Any],
        call: Callable[..., None],
    ) -> None:  # fmt: skip
        """Record the update of `parameter` and `state` in place, the kernel by `call(operator, *args, **kwargs)`.

        `numbers` are the group's numbers, named as by `numbers_of`.
        """
        if gradient.stride() != parameter.stride():  # the kernels walk through memory, whatever strides say
            gradient = torch.empty_like(parameter).copy_(gradient)
        group, own = self.group, list(state)
        if self.kind is SGD:
            choices = {name: group[name] for name in ("nesterov", "maximize")}
            call(aten._fused_sgd_.default, [parameter], [gradient], own, **numbers, **choices, is_first_step=False)
            return
        step, means, squares, largest = own[-1:], own[:1], own[1:2], own[2:-1]
        choices = {name: group[name] for name in ("amsgrad", "maximize")}
        step[0].add_(1)
        kernel = aten._fused_adamw_.default if group["decoupled_weight_decay"] else aten._fused_adam_.default
        call(kernel, [parameter], [gradient], means, squares, largest, step, **numbers, **choices)


def may_be_fused(update: Update, parameter: Tensor, state: Sequence[Tensor]) -> bool:
    """Whether PyTorch's fused kernel updates this parameter as the optimizer's own loop does.

    It walks through memory, whatever shapes and strides say: what belongs together must lie alike. Types that round
    coarsely are the loop's: `_fused_sgd_` of PyTorch 2.13 leaves bfloat16 and float16 parameters of 16 elements and
    more as they were, and Adam's kernels round otherwise. The first run of a graph is compared with PyTorch besides.
    """
    if parameter.dtype not in KERNEL_TYPES or not is_dense(parameter) or parameter.device.type != "cpu":
        return False
    counts = state[-1:] if update.state_names[-1:] == ("step",) else []
    tensors = state[: len(state) - len(counts)]
    looks = parameter.dtype, parameter.shape, parameter.stride()
    return all((one.dtype, one.shape, one.stride()) == looks for one in tensors) and all(
        one.numel() == 1 and one.dtype in KERNEL_TYPES for one in counts
    )


def updates_of(optimizer: Optimizer) -> dict[Tensor, Update]:
    """How `optimizer` updates each of its parameters.

    OptimizerRefused for an optimizer or a setting that is not supported.
    """
    kind = type(optimizer)
    if kind is NoUpdate:
        return {}
    if kind not in NUMBERS:
        known = ", ".join(known.__name__ for known in NUMBERS)
        raise OptimizerRefused(f"optimizer {kind.__name__} cannot be captured; use one of {known}")
    strange = sorted(optimizer.defaults.keys() - {*NUMBERS[kind], *CHOICES[kind]})
    if strange:
        raise OptimizerRefused(f"{kind.__name__} of this PyTorch has a setting that is not known: {strange[0]}")
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if len(set(held)) < len(held):
        raise OptimizerRefused(f"{kind.__name__} has a parameter twice, and updates it twice in each step")
    found = {}
    for group in optimizer.param_groups:
        _check(kind, group)
        update = Update(kind, group, state_names(kind, group))
        found.update(dict.fromkeys(group["params"], update))
    return found


def _check(kind: type[Optimizer], group: Mapping[str, Any]) -> None:
    name = kind.__name__
    for choice in ("capturable", "differentiable"):
        if group.get(choice):
            raise OptimizerRefused(f"{name}({choice}=True) cannot be captured; set it to False")
    if group.get("dampening"):
        raise OptimizerRefused("SGD does not dampen a parameter's first gradient, which a graph would; set it to 0")
    for number in NUMBERS[kind]:
        for value in group[number] if number == "betas" else [group[number]]:
            if isinstance(value, Tensor):
                if number != "lr" or value.numel() != 1 or value.requires_grad or value.device.type != "cpu":
                    raise OptimizerRefused(f"{name}({number}=...) is a tensor that cannot be captured; use a number")
            elif not isinstance(value, int | float):
                raise OptimizerRefused(f"{name}({number}={value!r}) cannot be captured; use a number")


def state_names(kind: type[Optimizer], group: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the state tensors of each parameter of a group, of an optimizer that is known (`NUMBERS`)."""
    if kind is SGD:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()
    return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []), "step")


def numbers_of(kind: type[Optimizer], group: Mapping[str, Any]) -> dict[str, float]:
    """The settings of a group that are inputs of the graph, as the optimizers' functions name them."""
    values = {name: group[name] for name in NUMBERS.get(kind, ())}
    if "betas" in values:
        values["beta1"], values["beta2"] = values.pop("betas")
    return {name: float(value) for name, value in values.items()}


def built_in(optimizer: Optimizer) -> tuple[Hashable, ...]:
    """The optimizer's settings that a graph has built in, by group; where these change, another graph is needed.

    They are the choices, and for each number whether it is 0 or a tensor. Entries of a group that are not settings of
    the optimizer, such as those of learning-rate schedules, are left out. An unknown optimizer gives ().
    """
    kind = type(optimizer)
    return tuple([choices_of(kind, group) for group in optimizer.param_groups]) if kind in NUMBERS else ()


def choices_of(kind: type[Optimizer], group: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """The part of `built_in` for one group."""
    chosen = (group.get(name) for name in CHOICES[kind])
    plain = [value if value is None or isinstance(value, bool) else repr(value) for value in chosen]
    return (*plain, *(_kind_of_number(name, group.get(name)) for name in NUMBERS[kind]))


def _kind_of_number(name: str, value: Any) -> Hashable:
    if isinstance(value, int | float):
        return name in _DECIDES_BY_ZERO and value == 0
    if isinstance(value, Tensor):
        return value.dtype, value.numel(), value.device, value.requires_grad
    return (
        tuple(_kind_of_number(name, one) for one in value) if isinstance(value, list | tuple) else type(value).__name__
    )


class SettingInputs:
    """Tensors of one element that hold the numbers of an optimizer's groups, for a graph to read.

    `renew` copies the groups' present numbers into them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._kind = type(optimizer)
        self.tensors: dict[str, Tensor] = {}
        self._filled: list[dict[str, float]] = []
        for i, group in enumerate(optimizer.param_groups):
            numbers = numbers_of(self._kind, group)
            self.tensors.update({f"{i}.{name}": torch.tensor(v, dtype=torch.float64) for name, v in numbers.items()})
            self._filled.append(numbers)

    def renew(self) -> None:
        """Copy the numbers that the optimizer's groups have now into the tensors."""
        for i, group in enumerate(self._optimizer.param_groups):
            numbers = numbers_of(self._kind, group)
            if i >= len(self._filled) or numbers == self._filled[i]:
                continue
            for name, value in numbers.items():
                self.tensors[f"{i}.{name}"].fill_(value)
            self._filled[i] = numbers

    def begin_step(self) -> None:
        """Read the numbers anew, and do what `zero_grad` and the call of `step` do beside the update.

        A schedule of learning rates that was made for the optimizer has wrapped `step` to note that it was called, and
        warns where it was not.
        """
        self.renew()
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = None
        own = vars(self._optimizer)
        if "_opt_called" not in own and hasattr(own.get("step"), "_wrapped_by_lr_sched"):
            own["_opt_called"] = True

    def numbers(self, group: int, values: Mapping[str, Tensor], number: Callable[[Tensor], Any]) -> dict[str, Any]:
        """The argument `numbers` of `Update.record` while a step is recorded.

        `values` are the fake tensors that stand for `tensors`; `number` returns what stands for one's element.
        """
        settings = self._optimizer.param_groups[group]
        found: dict[str, Any] = {}
        for name in self._filled[group]:
            is_zero = name in _DECIDES_BY_ZERO and settings[name] == 0
            found[name] = 0.0 if is_zero else number(values[f"{group}.{name}"])
        return found


def state_of(optimizer: Optimizer, parameter: Tensor, update: Update) -> dict[str, Tensor]:
    """The parameter's state tensors by name; missing ones are created as the optimizer's first step would create them.

    New tensors are not yet in `optimizer.state`; `keep_state` puts them there. CaptureError where the present state
    lacks a tensor that the optimizer's step needs.
    """
    state = optimizer.state.get(parameter, {})
    if update.kind is not SGD and state and any(state.get(name) is None for name in update.state_names):
        raise OptimizerRefused(f"the state of {update.kind.__name__} is incomplete")
    found = {}
    for name in update.state_names:
        tensor = state.get(name)
        if tensor is None:
            tensor = _first_step_count(update.group) if name == "step" else torch.zeros_like(parameter).detach()
        elif name != "step" and tensor.stride() != parameter.stride() and is_dense(parameter):
            tensor = torch.empty_like(parameter, dtype=tensor.dtype).detach().copy_(tensor)  # it had another layout
        found[name] = tensor
    return found


def keep_state(optimizer: Optimizer, parameter: Tensor, state: Mapping[str, Tensor]) -> None:
    """Put the tensors that `state_of` returned into `optimizer.state`, in PyTorch's order: the step count first."""
    if state:
        optimizer.state[parameter].update({name: state[name] for name in sorted(state, key=lambda n: n != "step")})


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill a range of memory, each once."""
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(tensor))


def _first_step_count(group: Mapping[str, Any]) -> Tensor:
    precise = torch.get_default_dtype() == torch.float64 and not group["fused"]
    return torch.zeros((), dtype=torch.float64 if precise else torch.float32)
