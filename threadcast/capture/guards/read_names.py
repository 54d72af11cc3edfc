"""Which items of a dictionary the code can read that a call reaches: those whose names occur in it, or all.

Of users' own objects all attributes count where code computes names (`getattr`, `vars`). Code of libraries is not
looked through name by name: of a layer it may read all public attributes, of other users' classes those that the bases
of theirs name which are a library's.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from threadcast.capture.guards.code_names import CodeNames
from threadcast.capture.guards.libraries import attributes_read_by, is_library, is_users_own, runs_users_code
from threadcast.capture.guards.objects import is_constant
from threadcast.capture.guards.places import Dictionary

_MANAGING = {"unittest", "threading", "multiprocessing", "concurrent", "asyncio"}
"""Libraries whose classes run tests, threads and processes."""
_CLASS_OWN = frozenset(("__doc__", "__module__", "__dict__", "__weakref__"))
_CALLS = frozenset(("forward", "__call__", "_call_impl"))
"""The methods of a library's layer that a call of it runs."""
_FUNCTION_CALLS = frozenset(("forward", "setup_context", "backward", "vjp", "jvp", "vmap"))
"""The methods of a `torch.autograd.Function` that PyTorch calls, though no code names them."""
FOLLOWS_PARAMETERS = ("_flat_weights", "_flat_weight_refs")
"""Attributes of recurrent layers that PyTorch sets where it calls them with other parameters, as capturing does."""
_LAYERS_CALL = frozenset(name for name, value in vars(nn.functional).items() if callable(value))
"""Functions that PyTorch's layers call; a user may put others in their places at any time."""
_MODULE_OWN = frozenset(vars(nn.Module()))
"""Attributes that every `nn.Module` has; they are checked elsewhere, where modules are watched."""


class ReadNames:
    """The names in the code that was found so far, and the classes by which more are read."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._frozen: frozenset[str] = frozenset()
        self._reflective = False
        self._kinds: set[int] = set()
        """Ids of classes that were added with all bases."""
        self._inherited: dict[int, frozenset[str]] = {}
        """By the id of a class that was found, or is a base of one: attributes that code of libraries reads of them."""
        self.callable_classes: set[int] = set()
        """Ids of classes that code can reach by a name, so that it may create objects of them."""

    def add(self, names: CodeNames) -> None:
        """Note the names of a function's code."""
        self._names |= names.attributes
        self._reflective |= names.reflective
        if names.reflective:
            self._names |= names.texts

    def name(self, names: Iterable[str]) -> None:
        """Note names of attributes that code has elsewhere."""
        self._names.update(names)

    def add_class(self, kind: type) -> bool:
        """Note which attributes code of libraries reads of a class's objects; return whether it was not known."""
        if id(kind) in self._kinds:
            return False
        self._kinds.add(id(kind))
        bases = (base for base in kind.__mro__ if base not in (nn.Module, object) and is_library(base.__module__))
        inherited = frozenset[str]().union(*(attributes_read_by(base) for base in bases if not _is_left_out(base)))
        for base in kind.__mro__:
            if issubclass(base, nn.Module) or not is_library(base.__module__):  # of others only what code names counts
                self._inherited[id(base)] = self._inherited.get(id(base), frozenset()) | inherited
        return True

    def of(self, table: Dictionary, *, followed: bool = False) -> frozenset[str] | None:
        """The names of items that can be read, None for all; where `followed`, of those there are, from which others
        can be reached."""
        if table.kind in ("items", "all attributes"):
            return None
        if table.kind == "globals":
            return frozenset(table.globals)
        if table.holder is nn.functional:
            return _LAYERS_CALL | self.names
        if table.kind == "library":
            return self.names if table.holder is None else _CALLS | self._inherited[id(table.holder)]
        holder, items = table.holder, table.items
        read = self.names.intersection(dict.keys(items)) if followed else self.names
        inherited = self._inherited.get(id(holder if isinstance(holder, type) else type(holder)), frozenset())
        if followed:
            inherited = inherited.intersection(dict.keys(items))
        if isinstance(holder, nn.Module):
            public = _has_library_code(holder)
            names = read | _CALLS | ({name for name in items if not name.startswith("_")} if public else set())
            # Of what else code of PyTorch reads, as graphs of `torch.fx` and their like, only these are followed.
            names |= {name for name in inherited if not followed or _calls_or_lists(items[name])}
            own = _MODULE_OWN.union(FOLLOWS_PARAMETERS if isinstance(holder, nn.RNNBase) else ())
            return frozenset((names | set(items) if self._reflective else names) - own)
        if self._reflective and isinstance(holder, ModuleType | type) and _is_users_own(holder):
            read = read.union(name for name in items if not followed or _is_data(items[name]))  # others lead anywhere
        if isinstance(holder, ModuleType):
            return frozenset(read)
        if isinstance(holder, type):
            special = {name for name in items if name.startswith("__") and isinstance(items[name], FunctionType)}
            if id(holder) not in self.callable_classes:
                special -= {"__init__", "__new__", "__post_init__"}
            calls = _FUNCTION_CALLS if issubclass(holder, torch.autograd.Function) else _CALLS
            return read.union(special, calls, inherited) - _CLASS_OWN
        if self._reflective:  # code may read any, and may set others
            return None
        return read | inherited if followed or inherited else self.names

    @property
    def names(self) -> frozenset[str]:
        """The names of attributes that occur in the code found so far, one object for all dictionaries."""
        if len(self._frozen) != len(self._names):
            self._frozen = frozenset(self._names)
        return self._frozen


def _is_users_own(holder: ModuleType | type) -> bool:
    return is_users_own(holder.__name__ if isinstance(holder, ModuleType) else holder.__module__)


def _is_data(value: Any, depth: int = 8) -> bool:
    """Whether it is a constant, or a container of nothing else; one may hold itself."""
    if type(value) not in (dict, list, tuple, set, frozenset) or not depth:
        return is_constant(value)
    return all(_is_data(one, depth - 1) for one in (value.values() if isinstance(value, dict) else value))


def _is_left_out(kind: type) -> bool:
    """Whether a library's class reads attributes that do not matter to a call: a tensor's, or of what runs a script."""
    return issubclass(kind, Tensor) or kind.__module__.split(".")[0] in _MANAGING


def _calls_or_lists(value: Any) -> bool:
    """Whether a private attribute of a layer is a function, is called as one, or is a list of constants."""
    if isinstance(value, list):
        return all(map(is_constant, value))
    return isinstance(value, FunctionType | MethodType | partial) or runs_users_code(value)


def _has_library_code(module: nn.Module) -> bool:
    return any(base not in (nn.Module, object) and is_library(base.__module__) for base in type(module).__mro__)
