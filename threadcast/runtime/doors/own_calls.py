"""Calls that the user did not make, as those of `learn`: all that they change is set back."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from threadcast.capture.guards.libraries import attributes_read_by
from threadcast.capture.guards.module_values import ModuleState
from threadcast.capture.guards.python_state import PythonState
from threadcast.capture.guards.unsupported import is_plain, unsupported
from threadcast.runtime.calls.conditions import why_no_inputs, why_transformed
from threadcast.runtime.check.step_state import StepState, needed_bytes, too_large
from threadcast.runtime.updates.parameter_update import ParameterUpdate
from threadcast.runtime.watching.hooks import owner_of_hooks
from threadcast.threads.memory import free_bytes


class OwnCalls:
    """Calls of `function` with `arguments` that the user has not asked for; all that they can change can be set back.

    `set_back` does so: parameters, buffers, gradients and every other tensor that they can reach, the arguments,
    attributes, globals, variables of closures, what is in their lists and dictionaries, and the random generators of
    PyTorch, NumPy and Python are as before. With `update` the calls are training steps, which also call `besides`:
    optimizer, scaler and the count of batches are set back too. `after_call` sets back the arguments alone, and what
    steps train, so that each call gets what the user has given. The copies take as much memory as all these tensors.

    `refused` says why no such calls may be made; None where they may. What a call writes to files and the like stays.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, besides: Sequence[Callable[..., Any]] = (),
        update: ParameterUpdate | None = None,
    ) -> None:  # fmt: skip
        model = function if isinstance(function, nn.Module) else None
        self.refused = unsupported(function) or why_transformed() or why_no_inputs(pytree.tree_leaves(arguments))
        self.refused = self.refused or (None if update is None else update.why_not_set_back)
        if self.refused is not None:
            return
        self._update, self._pending = update, 0 if update is None else update.pending
        self._reads = PythonState((function, *besides, *arguments))
        self._of_arguments = PythonState(arguments)
        if self._reads.unwatchable is not None:
            self.refused = f"it reads {self._reads.unwatchable}"
            return
        modules = self.modules = nn.ModuleList([*([] if model is None else [model]), *self._reads.modules])
        given = _each_once(pytree.tree_leaves(arguments), self._of_arguments.tensors)
        held = [] if update is None else update.holds
        tensors = _each_once(_tensors_of(modules), self._reads.tensors, given, pytree.tree_leaves(held))
        trained = [] if update is None else [tensor for tensor in tensors if tensor.requires_grad]
        self._gradients = [(tensor, tensor.grad) for tensor in trained if tensor.is_leaf]
        tensors = _each_once(tensors, (gradient for _, gradient in self._gradients))
        if len(self._gradients) < len(trained):
            self.refused = "it can reach a tensor through which gradients go on to what was computed before"
        elif (owner := owner_of_hooks(modules.modules(), [*modules.parameters(), *trained])) is not None:
            self.refused = f"there are hooks on {owner}, which may count calls"
        elif not all(map(_can_be_copied, tensors)):
            self.refused = "it can reach a tensor that is sparse, or of a class of its own"
        elif (reason := too_large(needed_bytes(None, None, tensors), free_bytes())) is not None:
            self.refused = f"{reason}; the calls that you make learn too"
        if self.refused is not None:
            return
        self._held = [(part, copy.copy(part)) for part in held]
        self._modules = ModuleState(modules)
        self._generators = [(one, one.get_state()) for one in self._reads.generators]
        self._state, self._given = StepState(None, None, tensors), StepState(None, None, given, draws=False)
        self._python = random.getstate(), np.random.get_state(legacy=False)
        self.include((), then=lambda: None)
        self._counted = [tensor for tensor in given if not tensor.is_inference()]
        self._versions = self._versions_now()

    def include(self, tensors: Iterable[Tensor], *, then: Callable[[], object]) -> None:
        """Set these new tensors back too, to the values that they have now, and call `then` at the end."""
        self._made, self._then = StepState(None, None, list(tensors), draws=False), then

    def set_back(self) -> None:
        """Set everything back; where that was interrupted, do it again."""
        self._modules.restore()
        self._reads.restore()
        for part, before in self._held:
            part.clear()
            (part.update if isinstance(part, dict) else part.extend)(before)
        if self._update is not None:
            self._update.pending = self._pending
        for tensor, gradient in self._gradients:
            tensor.grad = gradient
        self._state.restore()
        self._made.restore()
        random.setstate(self._python[0])
        np.random.set_state(self._python[1])
        for generator, state in self._generators:
            generator.set_state(state)
        self._then()

    def after_call(self) -> None:
        """Set back the arguments, which the call before may have written to, and what a step has trained."""
        self._of_arguments.restore()
        if self._update is not None:
            self._state.restore()
            self._made.restore()
        elif self._versions_now() != self._versions:
            self._given.restore()
            self._versions = self._versions_now()

    def _versions_now(self) -> list[int]:
        return [tensor._version for tensor in self._counted]


def in_training(model: nn.Module) -> list[str]:
    """The classes of those parts of a model that are in training mode and read it, so that they may compute something
    else in it than for inference."""
    kinds = dict.fromkeys(type(part) for part in model.modules() if part.training)
    return [kind.__name__ for kind in kinds if any(map(_reads_mode, kind.__mro__))]


def _reads_mode(kind: type) -> bool:
    return kind not in (nn.Module, GraphModule, object) and "training" in attributes_read_by(kind)


def _tensors_of(modules: nn.Module) -> Iterator[Tensor]:
    """The parameters of modules and their gradients, their buffers, and the tensors that are attributes."""
    for parameter in modules.parameters():
        yield parameter
        if parameter.grad is not None and parameter.grad.layout is torch.strided:
            yield parameter.grad
    yield from modules.buffers()
    for part in modules.modules():
        yield from (value for value in vars(part).values() if isinstance(value, Tensor))


def _each_once(*groups: Iterable[Any]) -> list[Tensor]:
    """The tensors in these groups, each once; of those that overlap in memory, as expanded ones, all of that memory."""
    found = {id(value): value for group in groups for value in group if isinstance(value, Tensor)}
    return [_without_overlaps(tensor) for tensor in found.values()]


def _can_be_copied(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and is_plain(tensor)


def _without_overlaps(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or not tensor.numel():
        return tensor
    reach, overlaps = 0, False
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        overlaps = overlaps or (size > 1 and stride <= reach)
        reach += (size - 1) * stride
    with torch.no_grad():
        return tensor.as_strided((reach + 1,), (1,)) if overlaps else tensor
