"""Hooks of modules, parameters and optimizers, which a captured graph would not call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as optimizer_globals

from threadcast.capture.graph.optimizers import NUMBERS, NoUpdate
from threadcast.capture.guards.objects import attribute_of
from threadcast.runtime.engine.native.library import loaded_library

ALL_MODULES = "all modules"
"""The owner, in words, of hooks that PyTorch calls for each module."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def owner_of_hooks(modules: Iterable[nn.Module], parameters: Sequence[Tensor]) -> str | None:
    """Return in words an owner of hooks that change forward or backward pass; None where there are no such hooks.

    Hooks of the node that adds a gradient to a parameter's `.grad` (AccumulateGrad) are seen only once the native
    library is loaded: Python does not show them.
    """
    tables: map[Any] = map(attrgetter("_backward_hooks", "_post_accumulate_grad_hooks"), parameters)
    library = loaded_library()
    if any(map(any, tables)) or (library is not None and any(map(library.accumulates_with_hooks, parameters))):
        return "a parameter"
    return _owner(_tables_of_modules(modules))


def why_update_apart(optimizer: Optimizer | None) -> str | None:
    """Return why the optimizer's own `step` must run, which a graph would not call; None where it need not."""
    owner = _owner(_tables_of_optimizer(optimizer))
    return replaced_method(optimizer) if owner is None else f"there are hooks on {owner}"


def _owner(tables: Iterable[tuple[nn.Module | str, Any]]) -> str | None:
    """The first owner of hooks that change something."""
    owner = next((owner for owner, table in tables if table and not _only_count(table)), None)
    return f"module {type(owner).__name__}" if isinstance(owner, nn.Module) else owner


def hook_tables(modules: Iterable[nn.Module], optimizer: Optimizer | None) -> Iterator[Any]:
    """Yield each dictionary of hooks, those for all modules and optimizers included."""
    yield from (table for _, table in (*_tables_of_modules(modules), *_tables_of_optimizer(optimizer)))


def _tables_of_modules(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module | str, Any]]:
    yield from ((ALL_MODULES, getattr(module_globals, name)) for name in _GLOBAL_HOOKS)
    for module in modules:
        yield from ((module, getattr(module, name)) for name in _HOOKS)


def _tables_of_optimizer(optimizer: Optimizer | None) -> Iterator[tuple[nn.Module | str, Any]]:
    if optimizer is not None and type(optimizer) is not NoUpdate:
        found = (getattr(optimizer, name, None) for name in _OPTIMIZER_HOOKS)
        yield from (("the optimizer", table) for table in found if table is not None)
        yield from (("all optimizers", getattr(optimizer_globals, name)) for name in _GLOBAL_OPTIMIZER_HOOKS)


def replaced_method(optimizer: Optimizer | None) -> str | None:
    """Return in words a method of the optimizer or its class that a graph would not call; None where there is none.

    A learning-rate schedule of PyTorch replaces `step` by a function that notes the call and makes it; that is allowed.
    """
    own = vars(optimizer) if optimizer is not None else {}
    for name in ("step", "zero_grad", "_init_group"):
        if name in own and not (name == "step" and _of_a_schedule(own[name], type(optimizer))):
            return f"the optimizer's {name} was replaced by another function"
        if type(optimizer) in NUMBERS and not _is_pytorchs(getattr(type(optimizer), name)):
            return f"the {name} of {type(optimizer).__name__} was replaced by another function"
    return None


def _is_pytorchs(function: Any) -> bool:
    """Whether a function, and each that it wraps, was defined in PyTorch."""
    while function is not None:
        if not isinstance(function, FunctionType) or not str(function.__globals__.get("__name__")).startswith("torch."):
            return False
        function = getattr(function, "__wrapped__", None)
    return True


def _of_a_schedule(step: Any, kind: type) -> bool:
    return (
        isinstance(step, FunctionType)
        and step.__globals__ is vars(lr_scheduler)
        and getattr(step, "__wrapped__", None) is getattr(kind, "step", None)
    )


def _only_count(hooks: dict[Any, Any]) -> bool:
    """Whether all hooks say that a step is the same without them, as those of `malleable`, which count steps."""
    return all(attribute_of(hook, "only_counts", False) for hook in hooks.values())


class OwnSteps:
    """Answers what `why_update_apart` finds out in less time, where nothing was hooked or replaced since."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Optimizer, tuple[Any, ...]] = WeakKeyDictionary()
        """Hooks and methods of each optimizer when its steps were found to be its own."""

    def are_own(self, optimizer: Optimizer) -> bool:
        """Return whether the next step of this optimizer is; its type is one of `capture.graph.optimizers.NUMBERS`."""
        kind: Any = type(optimizer)
        own = vars(optimizer).get
        found = (
            kind.step, kind.zero_grad, kind._init_group, own("step"), own("zero_grad"), own("_init_group"),
            tuple(optimizer._optimizer_step_pre_hooks), tuple(optimizer._optimizer_step_post_hooks),
            tuple(optimizer_globals._global_optimizer_pre_hooks), tuple(optimizer_globals._global_optimizer_post_hooks),
        )  # fmt: skip
        if self._seen.get(optimizer) != found:
            if why_update_apart(optimizer) is not None:
                return False
            self._seen[optimizer] = found
        return True
