"""One training step as the recorder calls it: forward, backward and, where an optimizer is given one, update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from threadcast.capture.graph.captured import OTHERS
from threadcast.capture.graph.optimizers import (
    NoUpdate,
    OptimizerRefused,
    SettingInputs,
    keep_state,
    may_be_fused,
    state_of,
    updates_of,
)
from threadcast.capture.graph.recorder import Recorder
from threadcast.capture.guards.module_values import ModuleValues
from threadcast.core.errors import CaptureError

Objective = Callable[..., tuple[dict[str, Any], Tensor]]
"""`objective(model, *data)` returns what a step returns, by name, and the tensor whose gradients it takes."""


class TrainingStep:
    """A callable that computes `objective(model, *data)`, its gradients and the optimizer's update.

    `groups` are the tensors that a captured step has as inputs beside the caller's, by role and name. A call takes
    other (fake) tensors in their places, in this order. `most_norm` is the largest norm of all gradients together with
    which parameters are updated. CaptureError where a step cannot be captured.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        recorder: Recorder,
        *,
        gradients: bool = False,
        most_norm: float | None = None,
    ) -> None:
        self._model, self._objective, self._optimizer = model, objective, optimizer
        self._recorder, self._gradients, self._most_norm = recorder, gradients, most_norm
        self.module = ModuleValues(model)
        self._updates = updates_of(optimizer)
        parameters = self.module.parameters
        own = set(map(id, parameters.values()))
        self._foreign = {id(p) for p in self._updates if p.requires_grad and id(p) not in own}
        self._trained = [(n, p) for n, p in parameters.items() if p.requires_grad and p in self._updates]
        self.others = {n: p for n, p in parameters.items() if p.requires_grad and p not in self._updates}
        """The parameters that require a gradient and are not the optimizer's: a step adds to their `.grad`."""
        if not self._trained and not (self.others and isinstance(optimizer, NoUpdate)):
            raise CaptureError(
                "no parameter requires a gradient and belongs to the optimizer: there is nothing to train"
            )
        if most_norm is not None and any(p not in self._updates for p in parameters.values()):
            raise OptimizerRefused("parameters that are not the optimizer's may have gradients, which the norm counts")
        self._states = {name: state_of(optimizer, p, self._updates[p]) for name, p in self._trained}
        self._group_of = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        for name, parameter in self._trained:
            if not may_be_fused(self._updates[parameter], parameter, list(self._states[name].values())):
                raise OptimizerRefused(
                    f"PyTorch's fused kernel of {type(optimizer).__name__} is not right for {name}, {parameter.dtype}"
                )
        self.settings = SettingInputs(optimizer)
        self._updated: list[tuple[str, Tensor]] = []

    @property
    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """The model's and the optimizer's tensors whose places a call's arguments take, by role and name."""
        states = {f"{name}.{key}": tensor for name, state in self._states.items() for key, tensor in state.items()}
        return {
            "parameter": self.module.parameters, "buffer": self.module.buffers, "state": states,
            "setting": self.settings.tensors,
        }  # fmt: skip

    def __call__(
        self, parameters: list[Tensor], buffers: list[Tensor], states: list[Tensor], numbers: list[Tensor], data: Any
    ) -> dict[str, Any]:
        live = dict(zip(self.module.parameters, parameters))
        of_buffers = [leaf for one in buffers if one.requires_grad for leaf in ([one] if one.is_leaf else _leaves(one))]

        def differentiate(*data: Any) -> tuple[dict[str, Any], Sequence[Tensor | None]]:
            result, value = self._objective(self._model, *data)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise CaptureError(f"loss must return a tensor of one element, got {describe(value)}")
            self._recorder.phase = "backward"
            return result, self._backward(value, live, of_buffers)

        # The loss and the backward pass may read the model's parameters too: those of this call, as the model does.
        result: dict[str, Any]
        result, found = self.module.call(differentiate, parameters, buffers, data)
        self._recorder.phase = "update"
        self._update(live, found, states, numbers)
        of_others = {n: g for n, g in zip(self.others, found[len(self._trained) :], strict=True) if g is not None}
        if of_others:
            result[OTHERS] = of_others
        if self._gradients:
            result["gradients"] = {name: g for (name, _), g in zip(self._trained, found) if g is not None}
        return result

    def _backward(
        self, loss: Tensor, live: Mapping[str, Tensor], of_buffers: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """The gradients of the trained parameters, then of the others; None where the loss does not depend on one.

        CaptureError where the loss also has a gradient by a tensor that is not an argument of the recorded step, or by
        one of those by which a buffer has one.
        """
        for leaf in _leaves(loss):
            if any(leaf is one for one in of_buffers):
                raise CaptureError("cannot capture: a buffer requires a gradient, which a graph would miss")
            if id(leaf) in self._foreign:
                raise CaptureError("the optimizer trains parameters that are not the model's, which a graph would miss")
            if not isinstance(leaf, FakeTensor):
                raise CaptureError(
                    f"cannot capture: the loss depends on {describe(leaf)} that requires a gradient and is not read "
                    "from the model, so a graph would miss this gradient"
                )
        names = [*(name for name, _ in self._trained), *self.others]
        return torch.autograd.grad(loss, [live[name] for name in names], allow_unused=True)

    @property
    def changing(self) -> list[Tensor]:
        """The tensors that steps change: trained parameters and buffers."""
        return [*(parameter for _, parameter in self._trained), *self.module.buffers.values()]

    def _update(
        self,
        live: Mapping[str, Tensor],
        gradients: Sequence[Tensor | None],
        states: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> None:
        """Update every trained parameter that has a gradient. OptimizerRefused where that cannot be recorded."""
        live_states, given = dict(zip(self.groups["state"], states)), dict(zip(self.settings.tensors, numbers))
        known: dict[int, dict[str, Any]] = {}
        try:
            with torch.no_grad():
                for (name, parameter), gradient in zip(self._trained, self._clipped(gradients)):  # others come after
                    if gradient is None:
                        continue
                    if gradient._is_zerotensor():
                        raise ValueError(f"the gradient of {name} is zeros without memory, which kernels do not take")
                    group = self._group_of[parameter]
                    if group not in known:
                        known[group] = self.settings.numbers(group, given, self._recorder.number)
                    own = [live_states[f"{name}.{key}"] for key in self._states[name]]
                    self._updates[parameter].record(live[name], gradient, own, known[group], self._recorder.call)
                    self._updated.append((name, parameter))
        except Exception as error:
            raise OptimizerRefused(f"cannot capture the update: {type(error).__name__}: {error}") from error

    def _clipped(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients as `torch.nn.utils.clip_grad_norm_` leaves them, in memory of their own."""
        there = [one for one in gradients if one is not None]
        if self._most_norm is None or not there:
            return gradients
        with torch.no_grad():
            norm = get_total_norm(there, foreach=False)
            factor = torch.clamp(float(self._most_norm) / (norm + 1e-6), max=1.0)
            return [None if one is None else (one * factor).to(one.dtype) for one in gradients]

    def keep_states(self) -> None:
        """Put the state tensors that the captured step updates into `optimizer.state`."""
        for name, parameter in self._updated:
            keep_state(self._optimizer, parameter, self._states[name])


def _leaves(tensor: Tensor) -> Iterator[Tensor]:
    """The leaf tensors that `tensor` has a gradient by, found in autograd's graph."""
    pending, known = [tensor.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        pending += [following for following, _ in node.next_functions]


def describe(value: Any) -> str:
    """A value in a message."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
