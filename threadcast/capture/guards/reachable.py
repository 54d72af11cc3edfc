"""What functions can reach besides their arguments: globals, closures, defaults, bound objects, and their attributes.

The walk follows code and objects together. Of an object it includes only the attributes whose names occur in code that
can be reached: a trainer's step counter does not matter to a loss that never reads it. Code and classes of libraries
(PyTorch, NumPy, the standard library) are not followed, but functions that these have wrapped are.
"""

from __future__ import annotations

import argparse
import builtins
import enum
import gc
import operator
import os
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import _GeneratorContextManager
from contextvars import ContextVar
from functools import _lru_cache_wrapper as FunctionCache
from functools import cached_property, partial
from types import FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS, CustomOpDef

from threadcast.capture.guards.code_names import CodeNames, names_in
from threadcast.capture.guards.libraries import attributes_read_by, is_library, is_of_library, runs_users_code
from threadcast.capture.guards.objects import (
    attribute_of,
    attributes_of,
    contents_of,
    holds_memory,
    is_constant,
    is_opaque,
    items_of,
    may_hide_values,
    own_dictionary,
    slots_of,
)

MOST = 20_000
"""Most items of lists, dictionaries, sets and arrays that are watched: more would take longer than a small step."""
MOST_OBJECTS = 500_000
"""Most objects that are looked at: a callable may reach what holds all of a program. A convention."""

_PLAIN_OBJECTS = (SimpleNamespace, argparse.Namespace)
"""Classes of the standard library whose objects only hold attributes; these are watched by name."""
_ENVIRONMENT = {"environ", "environb", "getenv"}
_TEXTS = "what texts name that are run as code (eval, exec, compile)"
_EVALUATORS = frozenset(("eval", "exec", "compile"))
"""Built-in functions that run texts as code or make code of them."""
_SET_BY_PLANS = {id(torch.get_num_threads), id(torch.get_num_interop_threads)}
"""Ids of functions of PyTorch that give other values while a plan runs."""
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_MANAGING = {"unittest", "threading", "multiprocessing", "concurrent", "asyncio"}
"""Libraries whose classes run tests, threads and processes."""
_WRAPPERS = (MethodType, partial, property, cached_property, staticmethod, classmethod)
_CONTAINERS = (dict, tuple, frozenset, list, set, deque, np.ndarray, bytearray)
_CLASS_OWN = frozenset(("__doc__", "__module__", "__dict__", "__weakref__"))
_CALLS = frozenset(("forward", "__call__", "_call_impl"))
"""The methods of a library's layer that a call of it runs."""
_FUNCTION_CALLS = frozenset(("forward", "setup_context", "backward", "vjp", "jvp", "vmap"))
"""The methods of a `torch.autograd.Function` that PyTorch calls, though no code names them."""
FOLLOWS_PARAMETERS = ("_flat_weights", "_flat_weight_refs")
"""Attributes of recurrent layers that PyTorch sets where it calls them with other parameters, as capturing does."""
_MODULE_OWN = frozenset(vars(nn.Module()))
"""Attributes that every `nn.Module` has; they are checked elsewhere, where modules are watched."""


class Reachable:
    """The values that can be reached from `roots`.

    `tables` are dictionaries and the names of their items that can be read. `attributes` are pairs of an owner and the
    name of an attribute that is not stored in a dictionary. `containers` are lists, sets, deques and arrays,
    `variables` are context variables, `caches` those of functions, `generators` PyTorch's. All objects found stay
    alive as long as this does, so that no id is used twice.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self.tensors: list[Tensor] = []
        self.modules: list[nn.Module] = []
        self.containers: list[Any] = []
        self.attributes: list[tuple[Any, str]] = []
        self.variables: list[ContextVar[Any]] = []
        self.caches: list[FunctionCache[Any]] = []
        self.generators: list[torch.Generator] = []
        self.unwatchable: str | None = None
        """A reachable value whose changes cannot be detected, as text; None where there is none."""
        self._names: set[str] = set()
        self._frozen: frozenset[str] = frozenset()
        self._reflective = self._sets = False
        self._seen: dict[int, Any] = {}
        self._classes: set[int] = set()
        self._kinds: set[int] = set()
        """Ids of classes of which all bases were added to `_classes`."""
        self._inherited: dict[int, frozenset[str]] = {}
        """By the id of a class that was found, or is a base of one: attributes that code of libraries reads of them."""
        self._callable_classes: set[int] = set()
        """Ids of classes that code can reach by a name, so that it may create objects of them."""
        self._globals: dict[int, tuple[dict[str, Any], str, set[str]]] = {}
        self._by_name: list[tuple[dict[str, Any], str, object]] = []
        """Dictionaries of attributes, with the owner's name and the owner; None for functions."""
        self._whole: list[tuple[dict[Any, Any], str]] = []
        self._of_libraries: list[tuple[dict[str, Any], str, type | None]] = []
        """Modules of libraries, and their classes of layers: functions in them may be replaced."""
        self._items = 0
        self._walk(list(roots))

    @property
    def tables(self) -> Iterator[tuple[dict[Any, Any], str, frozenset[str] | None, Any]]:
        """For each dictionary: itself, its owner's name, the names of items that can be read (None: all), and the class
        whose attributes it holds (None for others)."""
        for table, owner, names in self._globals.values():
            yield table, owner, frozenset(names), None
        for table, owner, holder in self._by_name:
            yield table, owner, self._names_of(table, holder), holder if isinstance(holder, type) else None
        for table, owner in self._whole:
            yield table, owner, None, None
        for table, owner, of in self._of_libraries:
            yield table, owner, self._names_in(of), of

    @property
    def set_by_name(self) -> frozenset[int]:
        """Ids of those dictionaries of `tables` in which code may set items by names that are computed: attributes of
        objects, but of layers, classes and modules."""
        if not self._sets:
            return frozenset()
        others = (nn.Module, ModuleType, type)
        return frozenset(id(table) for table, _, holder in self._by_name if not isinstance(holder, others))

    def _followed(self) -> Iterator[Any]:
        """The values in all dictionaries from which others can be reached."""
        for table, _, names in self._globals.values():
            yield from items_of(table, frozenset(names)).values()
        for table, _, holder in self._by_name:
            if table:
                yield from items_of(table, self._names_of(table, holder, followed=True)).values()
        for table, _ in self._whole:
            yield from items_of(table, None).values()
        for table, _, of in self._of_libraries:
            for value in items_of(table, self._names_in(of)).values():
                if isinstance(value, ModuleType) or id(value) in _SET_BY_PLANS or runs_users_code(value):
                    yield value

    def _walk(self, pending: list[Any]) -> None:
        while pending:
            while pending:
                value = pending.pop()
                if id(value) not in self._seen and not is_opaque(value):
                    if len(self._seen) >= MOST_OBJECTS:
                        self._cannot(f"more than {MOST_OBJECTS} objects can be reached")
                        return
                    self._seen[id(value)] = value
                    pending.extend(self._visit(value))
            pending.extend(value for value in self._followed() if id(value) not in self._seen)
            named = (op for name, op in OPDEFS.items() if name.rpartition("::")[2] in self._names)
            pending.extend(op for op in named if id(op) not in self._seen)  # called as `torch.ops.library.name`
            pending = [value for value in pending if not is_opaque(value)]

    def _names_in(self, of: type | None) -> frozenset[str]:
        """The names that matter in a module of a library, or in its class `of` of layers."""
        if of is not None:
            return _CALLS | self._inherited[id(of)]
        return self.names

    def _names_of(self, table: dict[Any, Any], holder: object, *, followed: bool = False) -> frozenset[str]:
        """The names of items that can be read; where `followed`, those there are, from which others can be reached."""
        read = self.names.intersection(dict.keys(table)) if followed else self.names
        inherited = self._inherited.get(id(holder if isinstance(holder, type) else type(holder)), frozenset())
        if followed:
            inherited = inherited.intersection(dict.keys(table))
        if isinstance(holder, nn.Module):
            public = {name for name in table if not name.startswith("_")}
            names = read | _CALLS | (public if _has_library_code(holder) else set())
            # Of what else code of PyTorch reads, as graphs of `torch.fx` and their like, only these are followed.
            names |= {name for name in inherited if not followed or _calls_or_lists(table[name])}
            own = _MODULE_OWN.union(FOLLOWS_PARAMETERS if isinstance(holder, nn.RNNBase) else ())
            return frozenset((names | set(table) if self._reflective else names) - own)
        if isinstance(holder, ModuleType):
            return frozenset(read)
        if isinstance(holder, type):
            special = {name for name in table if name.startswith("__") and isinstance(table[name], FunctionType)}
            if id(holder) not in self._callable_classes:
                special -= {"__init__", "__new__", "__post_init__"}
            called = _FUNCTION_CALLS if issubclass(holder, torch.autograd.Function) else _CALLS
            return read.union(special, called, inherited) - _CLASS_OWN
        if followed or inherited or (self._reflective and table):
            return frozenset(read.union(inherited, table if self._reflective else ()))
        return self.names

    @property
    def names(self) -> frozenset[str]:
        """The names of attributes that occur in the code found so far, one object for all tables."""
        if len(self._frozen) != len(self._names):
            self._frozen = frozenset(self._names)
        return self._frozen

    def _visit(self, value: Any) -> Iterator[Any]:
        """Note what is to be watched of `value`, and yield what can be reached from it."""
        kind = type(value)
        if isinstance(value, Tensor):
            self.tensors.append(value)
            self._of_attributes(value, "a tensor")
        elif isinstance(value, nn.Module):
            self.modules.append(value)
            self._of_attributes(value, kind.__name__)
            self._add_class(kind)
            buffers = [buffer for buffer in value._buffers.values() if buffer is not None and vars(buffer)]
            self._by_name += [(vars(buffer), "a buffer", None) for buffer in buffers]
            yield from (*value._parameters.values(), *value.children())
        elif isinstance(value, FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, _WRAPPERS):
            yield from self._of_wrapper(value)
        elif isinstance(value, ModuleType):
            if is_library(value.__name__):
                self._of_libraries.append((vars(value), value.__name__, None))
            else:
                self._by_name.append((vars(value), value.__name__, value))
        elif isinstance(value, type):
            self._callable_classes.update(map(id, value.__mro__))
            self._add_class(value)
            self._add_class(kind)  # a metaclass may have properties
            if issubclass(value, enum.Enum) and not is_library(value.__module__):
                yield from value
        elif isinstance(value, _CONTAINERS):
            yield from self._of_container(value)
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, ContextVar):
            self.variables.append(value)
            yield value.get(None)
        elif isinstance(value, MappingProxyType):
            yield gc.get_referents(value)[0]
        elif isinstance(value, _GeneratorContextManager):  # as a decorator it makes a new generator for each call
            if hasattr(value, "func"):
                yield from (value.func, *value.args, *value.kwds.values())
            else:  # it was entered, and forgot them
                self._add_source(value.gen, type(value.gen))
        elif isinstance(value, CustomOpDef):
            self.attributes += [(value, "_setup_context_fn"), (value, "_backward_fn")]
            yield from (value._init_fn, value._setup_context_fn, value._backward_fn, *value._backend_fns.values())
        elif isinstance(value, (*_GENERATORS, Iterator)):
            self._add_source(value, kind)
        else:
            if isinstance(value, FunctionCache):
                self.caches.append(value)
            yield attribute_of(value, "__wrapped__")
            yield from self._of_object(value, kind)

    def _of_attributes(self, value: Any, owner: str) -> None:
        """Note the attributes that an object has or may get, and that all may be exchanged at once."""
        self._by_name.append((vars(value), owner, value))
        self.attributes.append((value, "__dict__"))

    def _of_wrapper(self, value: Any) -> Iterator[Any]:
        if isinstance(value, MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, partial):
            self._whole.append((value.keywords, "a partial's keywords"))
            yield from (value.func, *value.args)
        elif isinstance(value, property):
            yield value.fget
        elif isinstance(value, cached_property):
            yield value.func
        else:
            yield value.__func__

    def _of_container(self, value: Any) -> Iterator[Any]:
        if not is_library(type(value).__module__):  # it may have attributes and methods
            if own_dictionary(value) is not None:
                self._of_attributes(value, type(value).__name__)
            yield from self._of_kind(value, type(value))
        if isinstance(value, tuple | frozenset):
            yield from value
            return
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            self._cannot("an array of objects, whose changes cannot be detected")
        self._count(value.reshape(-1) if isinstance(value, np.ndarray) else value)
        if isinstance(value, dict):
            self._whole.append((value, "a dictionary"))
            return
        self.containers.append(value)
        if not isinstance(value, np.ndarray | bytearray):
            yield from value

    def _add_source(self, value: Any, kind: type) -> None:
        """Refuse what gives another value each time it is read."""
        if not isinstance(value, _GENERATORS):
            self._cannot(f"a {kind.__name__}, which gives another value each time")
        elif value is not getattr(random, "_inst", None):  # the recorder finds out whether that is used
            self._cannot(f"a {kind.__module__}.{kind.__name__}, which gives other numbers each time")

    def _of_function(self, function: FunctionType) -> Iterator[Any]:
        for cell in function.__closure__ or ():
            self.attributes.append((cell, "cell_contents"))
            yield contents_of(cell)
        if is_of_library(function):
            return
        self.attributes += [(function, "__code__"), (function, "__defaults__"), (function, "__kwdefaults__")]
        yield from (*(function.__defaults__ or ()), function.__kwdefaults__)
        names = names_in(function.__code__)
        self._names |= names.attributes
        self._reflective |= names.reflective
        self._sets |= names.sets
        self._by_name.append((vars(function), f"function {function.__qualname__}", None))
        _, _, known = self._globals.setdefault(
            id(function.__globals__), (function.__globals__, f"module {function.__module__}", set())
        )
        known |= names.globals
        if names.reflective:
            self._names |= names.texts
            known |= names.texts
        if _runs_texts(function, names):
            self._cannot(_TEXTS)
        if not _ENVIRONMENT.isdisjoint(names.globals | names.attributes):
            yield os.environ
        yield from (sys.modules.get(name) for name in names.imports)
        package = function.__globals__.get("__package__") or ""
        while package:  # a relative import names a module of this package or of one above
            yield from (sys.modules.get(f"{package}.{name}" if name else package) for name in names.imports)
            package = package.rpartition(".")[0]

    def _add_class(self, kind: type) -> None:
        if id(kind) in self._kinds:
            return
        self._kinds.add(id(kind))
        bases = (base for base in kind.__mro__ if base not in (nn.Module, object) and is_library(base.__module__))
        inherited = frozenset[str]().union(*(attributes_read_by(base) for base in bases if not _is_left_out(base)))
        for base in kind.__mro__:
            if issubclass(base, nn.Module) or not is_library(base.__module__):  # of others only what code names counts
                self._inherited[id(base)] = self._inherited.get(id(base), frozenset()) | inherited
            if id(base) in self._classes:
                continue
            self._classes.add(id(base))
            if not is_library(base.__module__):
                self._by_name.append((attributes_of(base), f"class {base.__name__}", base))
            elif issubclass(base, nn.Module):
                self._of_libraries.append((attributes_of(base), f"class {base.__name__}", base))

    def _of_object(self, value: Any, kind: type) -> Iterator[Any]:
        library = is_library(kind.__module__)
        attributes = own_dictionary(value)
        if library and kind.__module__.split(".")[0] == "threadcast":
            return
        if isinstance(value, threading.local):
            self._cannot(f"a {kind.__name__} of threading, which has other attributes in each thread")
            return
        if holds_memory(kind):
            self._cannot(f"a {kind.__name__}, whose changes cannot be detected")
            return
        if isinstance(value, operator.attrgetter | operator.methodcaller):
            self._names.update(part for name in value.__reduce__()[1] for part in str(name).split("."))
        if isinstance(value, types.BuiltinFunctionType):  # a method of an object too, as a list's `append`
            if value.__self__ is builtins and value.__name__ in _EVALUATORS:  # code has another name for it
                self._cannot(_TEXTS)
            if id(value) in _SET_BY_PLANS:
                self._cannot(f"torch.{value.__name__}, which plans change")
            yield value.__self__
        elif attributes is None and may_hide_values(value):
            self._cannot(f"a {kind.__name__}, whose changes cannot be detected")
        if attributes is not None:
            if library and not isinstance(value, _PLAIN_OBJECTS):
                self._count(attributes)
                self._whole.append((attributes, kind.__name__))
            else:
                self._of_attributes(value, kind.__name__)
        if library:
            if attributes is None:
                yield from self._of_slots(value, kind)
            return
        yield from self._of_kind(value, kind)

    def _of_kind(self, value: Any, kind: type) -> Iterator[Any]:
        """As `_visit`, of an object's class, which is none of a library, and of its slots."""
        self._add_class(kind)
        self.attributes.append((value, "__class__"))
        yield from self._of_slots(value, kind)

    def _of_slots(self, value: Any, kind: type) -> Iterator[Any]:
        for name in slots_of(kind):
            self.attributes.append((value, name))
            yield attribute_of(value, name)

    def _count(self, items: Any) -> None:
        self._items += len(items)
        if self._items > MOST:
            self._cannot(f"more than {MOST} values in lists, dictionaries and arrays")

    def _cannot(self, reason: str) -> None:
        self.unwatchable = self.unwatchable or reason


def _runs_texts(function: FunctionType, names: CodeNames) -> bool:
    """Whether a function may run texts as code."""
    known = function.__globals__
    if not _EVALUATORS & names.globals <= known.keys():  # the others are functions of its module, if none of Python's
        return True
    built_in = "builtins" in names.imports or any(known.get(name) is builtins for name in names.globals)
    return built_in and not _EVALUATORS.isdisjoint(names.attributes)


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
