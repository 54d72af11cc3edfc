"""What a captured graph takes for granted of a model and an optimizer, and whether it still holds."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torch.optim import Optimizer

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Watch:
    """Knows which tensors a model and its optimizer had, where they lay, and the settings that a graph has built in."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        self.model = model
        self.optimizer = optimizer
        self.renew()

    def renew(self) -> None:
        """Take what is there now for granted."""
        self._modules = list(self.model.modules())
        held = list(self._held())
        self._holders = [holder for holder, _, _ in held]
        self._names = [name for _, name, _ in held]
        self._values = [value for _, _, value in held]
        self._tensors = [value for value in self._values if isinstance(value, Tensor)]
        self._parameters = list(self.model.parameters())
        hooked = list(self._hook_tables())
        self._owners = [owner for owner, _ in hooked]
        self._hooks = [table for _, table in hooked]
        self._places = list(map(Tensor.data_ptr, self._tensors))
        self._strides = list(map(Tensor.stride, self._tensors))
        self._tables = [t for m in self._modules for t in (m._parameters, m._buffers, m._modules)]
        self._sizes = list(map(len, self._tables))
        self.storages = frozenset(tensor.untyped_storage().data_ptr() for tensor in self._tensors)

    def holds(self) -> bool:
        """Whether every tensor is still the one it was, in the same place."""
        # Every call asks: loops in C take 0.1 us a tensor.
        found = map(dict.get, self._holders, self._names)
        return (
            all(map(is_, found, self._values))
            and list(map(len, self._tables)) == self._sizes
            and list(map(Tensor.data_ptr, self._tensors)) == self._places
            and list(map(Tensor.stride, self._tensors)) == self._strides
        )

    def settings(self) -> tuple[Any, ...]:
        """What else a graph has built in: modes, which parameters are trained, the optimizer's settings but rates."""
        modes = tuple(map(attrgetter("training"), self._modules))
        if self.optimizer is None:
            return (modes,)
        trained = tuple(map(attrgetter("requires_grad"), self._parameters))
        groups = tuple(
            [
                tuple([value for name, value in group.items() if name not in ("params", "lr", "initial_lr")])
                for group in self.optimizer.param_groups
            ]
        )
        return modes, trained, groups, tuple([len(group["params"]) for group in self.optimizer.param_groups])

    def hooks(self) -> str | None:
        """Whose hooks there are, which a graph would not call; None without any."""
        tables: map[Any] = map(attrgetter("_backward_hooks", "_post_accumulate_grad_hooks"), self._parameters)
        if any(map(any, tables)):
            return "a parameter"
        if not any(self._hooks):
            return None
        return next(owner for owner, table in zip(self._owners, self._hooks, strict=True) if table)

    def _hook_tables(self) -> Iterator[tuple[str, Any]]:
        for module in self._modules:
            yield from ((f"module {type(module).__name__}", getattr(module, name)) for name in _HOOKS)
        yield from (("all modules", getattr(module_globals, name)) for name in _GLOBAL_HOOKS)
        if self.optimizer is not None:
            yield from (("the optimizer", getattr(self.optimizer, name, None)) for name in _OPTIMIZER_HOOKS)

    def _held(self) -> Iterator[tuple[dict[Any, Any], Any, object]]:
        for module in self._modules:
            yield vars(module), "forward", vars(module).get("forward")
            for held in (module._parameters, module._buffers, module._modules):
                for name, value in held.items():
                    yield held, name, value
        if self.optimizer is not None:
            yield vars(self.optimizer), "state", self.optimizer.state
            for parameter, state in self.optimizer.state.items():
                yield self.optimizer.state, parameter, state
                yield from ((state, name, value) for name, value in state.items() if isinstance(value, Tensor))
