"""Finds out before each call whether model and optimizer are still as they were when their graph was captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_globals

from threadcast.capture.optimizers import built_in
from threadcast.capture.python_state import PythonState, Table
from threadcast.capture.unsupported import is_plain
from threadcast.runtime.engines.native.library import loaded_library

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")

_CONSTANTS = (bool, int, float, complex, str, tuple, type(None))


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The state of a model and its optimizer at one moment, as far as captured graphs depend on it."""

    moved: bool
    """Whether a tensor was exchanged or moved in memory since `Watch.renew`, or a Python value that code reads has
    changed since then. Graphs must then be captured anew."""
    hooked: str | None
    """The owner of hooks, in words; a graph would not call them. None where there are no hooks."""
    settings: tuple[Any, ...]
    """Other values that a graph has built in: the modules' numbers and texts (modes too), which parameters are
    trained, and the optimizer's settings except the numbers that a graph takes as inputs."""
    unsteady: str | None = None
    """Why no graph is used: something changes too often, or cannot be watched. None where neither is so."""


class Patience:
    """Decides whether to capture anew after a change, or to wait until nothing has changed for some calls.

    A change within `SOON` calls of the last change is a quick one. The first `QUICK_ONES` quick changes in a row are
    captured at once. After that, each further quick change doubles the number of calls without a change to wait for, up
    to `LONGEST`.
    """

    SOON, QUICK_ONES, LONGEST = 100, 8, 1024

    def __init__(self) -> None:
        self._row = self._calm = self._wait = 0

    def after(self, *, changed: bool) -> bool:
        """Return whether the next call may be captured, if it needs to be. `changed`: whether a change was found."""
        if not changed:
            self._calm += 1
            return self._calm >= self._wait
        self._row = self._row + 1 if self._calm < self.SOON else 0
        self._calm = 0
        self._wait = 0 if self._row <= self.QUICK_ONES else min(2 ** (self._row - self.QUICK_ONES), self.LONGEST)
        return self._wait == 0


class ReadsWatch:
    """Finds changes of the Python values that code reads, in microseconds where the native library is loaded.

    For most dictionaries it is enough to read their counter of changes. Some change often in items that the code does
    not read, as the global variables of a script do in each turn of its loop. These are compared item by item from
    their first such change on.
    """

    def __init__(self, model: nn.Module, functions: Sequence[Any]) -> None:
        self.state = PythonState((model, *functions), besides=model)
        self._quick: Any = None
        self._each: list[Any] = []
        self._often: list[Table] = []

    def changed(self) -> str | None:
        """The first value found to have changed since this object was made, as text; None where none has."""
        if self._quick is not None and self._quick.holds():
            return self.state.changed_in(self._often) or self.state.changed_elsewhere()
        library = loaded_library()
        if library is None or not library.tagged:
            return self.state.changed()
        self._often = [t for t in self.state.tables if t in self._often or self._has_changed(t)]
        rest = [table for table in self.state.tables if table not in self._often]
        self._each = [(table, library.Untouched([table.items], [], [])) for table in rest]
        self._quick = library.Untouched([table.items for table in rest], self.state.lists, [])
        if (changed := self.state.changed()) is not None:
            self._quick = None
        return changed

    def _has_changed(self, table: Table) -> bool:
        return any(own is table and not untouched.holds() for own, untouched in self._each)


class Watch:
    """Compares a model and its optimizer with their state at the last `renew`: tensors, addresses, built-in settings.

    `functions` are other callables that a graph has built in: a loss, or a function in place of a model. Values that
    they and the model's code read besides their arguments (globals, closures, attributes) are watched, too.

    `look` is called before every call. Once the native library is loaded, a look that finds no change costs a few
    memory loads per tensor.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None, *, functions: Sequence[Any] = ()) -> None:
        self.model = model
        self.optimizer = optimizer
        self._functions = functions
        self._patience = Patience()
        self._what = ""
        self._reads = ReadsWatch(model, functions)
        self.renew()

    def renew(self) -> None:
        """Compare with the current state from here on."""
        if self._reads.changed() is not None:
            self._reads = ReadsWatch(self.model, self._functions)
        reached = (part for module in self._reads.state.modules for part in module.modules())
        self._own = len(list(self.model.modules()))
        self._modules = list(dict.fromkeys([*self.model.modules(), *reached]))
        held = list(self._held())
        self._holders = [holder for holder, _, _ in held]
        self._names = [name for _, name, _ in held]
        self._values = [value for _, _, value in held]
        tensors = [*self._values, *self._reads.state.tensors]
        self._tensors = [value for value in tensors if isinstance(value, Tensor) and _is_strided(value)]
        self._parameters = list(self.model.parameters())
        self._places = list(map(Tensor.data_ptr, self._tensors))
        self._sides = [(tensor.shape, tensor.stride()) for tensor in self._tensors]
        self._tables = [t for m in self._modules for t in (m._parameters, m._buffers, m._modules)]
        self._sizes = list(map(len, self._tables))
        self.storages = frozenset(tensor.untyped_storage().data_ptr() for tensor in self._tensors)
        self._untouched: Any = None
        self._groups_untouched: Any = None
        self._seen: Seen | None = None

    def look(self) -> Seen:
        """Return the current state. Call it exactly once before each call, because changes are counted by calls."""
        read = self._reads.changed()
        if read is None and self._seen is not None and self._untouched is not None and self._untouched.holds():
            if not self._groups_untouched.holds():  # as before each step of a learning-rate schedule
                self._groups_untouched = self._touches_of_groups()
                self._seen = replace(self._seen, settings=(*self._seen.settings[:2], *self._groups()))
            return self._seen if self._patience.after(changed=False) else self._restless(self._seen)
        self._note_touches()  # first: what another thread changes while this looks then counts as touched
        moved = read is not None or not self._holds()
        if moved:
            self._what = read or "a tensor or a layer of the model, or the optimizer's state"
        self._seen = Seen(moved, self._hooked(), self._settings(), self._cannot_watch())
        return self._seen if self._patience.after(changed=moved) else self._restless(self._seen)

    def _restless(self, seen: Seen) -> Seen:
        return replace(seen, unsteady=f"{self._what} changes from call to call")

    def _cannot_watch(self) -> str | None:
        reason = self._reads.state.unwatchable
        return None if reason is None else f"it reads {reason}"

    def _touches_of_groups(self) -> Any:
        library = loaded_library()
        assert library is not None
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        return library.Untouched(groups, [groups, *(group["params"] for group in groups)], [])

    def _note_touches(self) -> None:
        library = loaded_library()
        if library is None or not library.tagged:
            return
        self._groups_untouched = self._touches_of_groups()
        tables = [*map(vars, self._modules), *self._tables, *(table for _, table in self._hook_tables())]
        if self.optimizer is not None:
            tables += [vars(self.optimizer), self.optimizer.state, *self.optimizer.state.values()]
        tensors = [*self._tensors, *filter(_is_strided, self._parameters)]
        self._untouched = library.Untouched(tables, [], tensors)

    def _holds(self) -> bool:
        found = map(dict.get, self._holders, self._names)
        return (
            all(map(is_, found, self._values))
            and list(map(len, self._tables)) == self._sizes
            and list(map(Tensor.data_ptr, self._tensors)) == self._places
            and [(tensor.shape, tensor.stride()) for tensor in self._tensors] == self._sides
        )

    def _settings(self) -> tuple[Any, ...]:
        own, others = self._modules[: self._own], self._modules[self._own :]
        constants = tuple([tuple(_constants(vars(m))) for m in own]), tuple([m.training for m in others])
        if self.optimizer is None:
            return (constants,)
        trained = tuple(map(attrgetter("requires_grad"), self._parameters))
        return constants, trained, *self._groups()

    def _groups(self) -> tuple[Any, ...]:
        """The optimizer's settings that graphs have built in, and the ids of each group's parameters."""
        assert self.optimizer is not None
        held = tuple([tuple(map(id, group["params"])) for group in self.optimizer.param_groups])
        return built_in(self.optimizer), held

    def _hooked(self) -> str | None:
        tables: map[Any] = map(attrgetter("_backward_hooks", "_post_accumulate_grad_hooks"), self._parameters)
        if any(map(any, tables)):
            return "a parameter"
        owner = next((owner for owner, table in self._hook_tables() if table and not _only_count(table)), None)
        return f"module {type(owner).__name__}" if isinstance(owner, nn.Module) else owner

    def _hook_tables(self) -> Iterator[tuple[nn.Module | str, Any]]:
        for module in self._modules:
            yield from ((module, getattr(module, name)) for name in _HOOKS)
        yield from (("all modules", getattr(module_globals, name)) for name in _GLOBAL_HOOKS)
        if self.optimizer is not None:
            found = (getattr(self.optimizer, name, None) for name in _OPTIMIZER_HOOKS)
            yield from (("the optimizer", table) for table in found if table is not None)
            yield from (("all optimizers", getattr(optimizer_globals, name)) for name in _GLOBAL_OPTIMIZER_HOOKS)

    def _held(self) -> Iterator[tuple[dict[Any, Any], Any, object]]:
        for module in self._modules:
            yield vars(module), "forward", vars(module).get("forward")
            yield from (
                (vars(module), name, value) for name, value in vars(module).items() if isinstance(value, Tensor)
            )
            for held in (module._parameters, module._buffers, module._modules):
                for name, value in held.items():
                    yield held, name, value
        if self.optimizer is not None:
            yield vars(self.optimizer), "state", self.optimizer.state
            for parameter, state in self.optimizer.state.items():
                yield self.optimizer.state, parameter, state
                yield from ((state, name, value) for name, value in state.items() if isinstance(value, Tensor))


def _only_count(hooks: dict[Any, Any]) -> bool:
    """Whether all hooks are those of `malleable`, which count steps and do not change them."""
    return all(getattr(hook, "only_counts", False) for hook in hooks.values())


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and is_plain(tensor)


def _constants(attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of a module's own public attributes that are numbers, texts, tuples or None."""
    for name, value in attributes.items():
        if isinstance(value, _CONSTANTS) and not name.startswith("_"):
            yield name, _frozen(value)


def _frozen(value: Any) -> Any:
    """`value` in a form that can be compared and hashed."""
    if isinstance(value, Tensor):
        return id(value) if value.numel() > 1 else value.item()
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple([(name, _frozen(one)) for name, one in value.items()])
    return value if isinstance(value, _CONSTANTS) else repr(value)
