"""What functions can reach besides their arguments: globals, closures, defaults, bound objects, and their attributes.

The walk follows code and objects together. Of an object it includes only the attributes whose names occur in code that
can be reached: a trainer's step counter does not matter to a loss that never reads it. Code and classes of libraries
(PyTorch, NumPy, the standard library) are not followed, but functions that these have wrapped are.
"""

from __future__ import annotations

import argparse
import datetime
import enum
import gc
import operator
import os
import random
import reprlib
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import _GeneratorContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper as FunctionCache
from functools import cached_property, partial
from types import FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS, CustomOpDef

from threadcast.capture.guards.code_names import names_in
from threadcast.capture.guards.libraries import (
    attributes_read_by,
    is_library,
    is_of_library,
    is_users_own,
    runs_users_code,
)
from threadcast.capture.guards.objects import (
    attribute_of,
    attributes_of,
    contents_of,
    hides_values,
    is_constant,
    is_opaque,
    items_of,
    own_dictionary,
    slots_of,
)
from threadcast.capture.guards.printing import READS

MOST = 20_000
"""Most items of lists, dictionaries, sets and arrays that are watched: more would take longer than a small step."""
MOST_OBJECTS = 500_000
"""Most objects that are looked at: a callable may reach what holds all of a program. A convention."""

_PLAIN_OBJECTS = (SimpleNamespace, argparse.Namespace)
"""Classes of the standard library whose objects only hold attributes; these are watched by name."""
_ENVIRONMENT = {"environ", "environb", "getenv"}
_REFUSED = {
    id(function): f"torch.{function.__name__}, which plans change"
    for function in (torch.get_num_threads, torch.get_num_interop_threads)
}
"""By id, functions of libraries that give what is not looked at, in words."""
_HELD = {id(getattr(owner, name)): f"{name}, which gives something else each time" for owner, name, _ in READS}
"""The same of those that the recorder notices where they are called by way of their module (`time.time()`)."""
_DATES = {id(datetime.date), id(datetime.datetime)}
_TODAY = {"now", "utcnow", "today"}
_FOLLOWED = _REFUSED.keys() | _DATES
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_MANAGING = {"unittest", "threading", "multiprocessing", "concurrent", "asyncio"}
"""Libraries whose classes run tests, threads and processes."""
_WRAPPERS = (MethodType, partial, property, cached_property, staticmethod, classmethod)
_CONTAINERS: tuple[Any, ...] = (dict, tuple, frozenset, list, set, deque, np.ndarray, bytearray)
_CLASS_OWN = frozenset(("__doc__", "__module__", "__dict__", "__weakref__"))
_CALLS = frozenset(("forward", "__call__", "_call_impl"))
"""The methods of a library's layer that a call of it runs."""
_FUNCTION_CALLS = frozenset(("forward", "setup_context", "backward", "vjp", "jvp", "vmap"))
"""The methods of a `torch.autograd.Function` that PyTorch calls, though no code names them."""
FOLLOWS_PARAMETERS = ("_flat_weights", "_flat_weight_refs")
"""Attributes of recurrent layers that PyTorch sets where it calls them with other parameters, as capturing does."""
_MODULE_OWN = frozenset(vars(nn.Module()))
"""Attributes that every `nn.Module` has; they are checked elsewhere, where modules are watched."""


class Place(NamedTuple):
    """Where a value was found, by which a user knows it: `Net.info["steps"]`, not "a dictionary"."""

    value: Any
    key: Any
    """Its name; of a part of `parent` that of the attribute, or the key of the item."""
    parent: Place | None = None
    item: bool = False
    of: str = ""
    """What the name is one of: " (a variable of loss)"."""

    def part(self, value: Any, key: Any, *, item: bool = False) -> Place:
        """Where a part of the value is, which code reads in this way."""
        return Place(value, key, self, item)

    @property
    def name(self) -> str:
        """The name of the value. What is ours has none: a model in it is called as it is alone."""
        place, parts = self, list[str]()
        while (above := place.parent) is not None:
            if type(above.value).__module__.startswith("threadcast.runtime.") and place.value is not None:
                place = called(place.value)
                continue
            parts.append(f"[{reprlib.repr(place.key)}]" if place.item else f".{place.key}")
            place = above
        return "".join([place.key, *reversed(parts), place.of])


def called(value: Any) -> Place:
    """A value that is known by the name of a function, a class or a module, else by that of its class."""
    of = value
    while isinstance(of, MethodType):
        of = of.__self__
    name = of.__name__ if isinstance(of, FunctionType | type | ModuleType) else type(of).__name__
    return Place(value, str(name))


@dataclass(frozen=True, slots=True, eq=False)
class Dictionary:
    """A dictionary of which code can read all items or some, and whose it is."""

    items: dict[Any, Any]
    place: Place
    kind: Literal["globals", "attributes", "all attributes", "items", "library"]
    holder: Any = None
    """The object or the class whose attributes these are; None for others, and for functions."""
    globals: set[str] = field(default_factory=set)
    """The global variables that code names."""

    def called(self, key: Any) -> str:
        """The name of an item."""
        return Place(None, key, self.place, self.kind == "items").name


class Reachable:
    """The values that can be reached from `roots`.

    `names_of` tells which items of `dictionaries` can be read. `attributes` are owners, each with the name of an
    attribute that is not stored in a dictionary. `containers` are lists, sets, deques and arrays, `variables` are
    context variables, `caches` those of functions, `generators` PyTorch's. `places` are where all values were found, by
    their ids; these stay alive as long as this does, so that no id is used twice.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self.tensors: list[Tensor] = []
        self.modules: list[nn.Module] = []
        self.containers: list[Place] = []
        self.attributes: list[tuple[Place, str]] = []
        self.variables: list[ContextVar[Any]] = []
        self.caches: list[FunctionCache[Any]] = []
        self.generators: list[torch.Generator] = []
        self.unwatchable: str | None = None
        """A reachable value whose changes cannot be detected, as text; None where there is none."""
        self.dictionaries: list[Dictionary] = []
        self.places: dict[int, Place] = {}
        self._names: set[str] = set()
        self._frozen: frozenset[str] = frozenset()
        self._reflective = False
        self._classes: set[int] = set()
        self._kinds: set[int] = set()
        """Ids of classes of which all bases were added to `_classes`."""
        self._inherited: dict[int, frozenset[str]] = {}
        """By the id of a class that was found, or is a base of one: attributes that code of libraries reads of them."""
        self._callable_classes: set[int] = set()
        """Ids of classes that code can reach by a name, so that it may create objects of them."""
        self._globals: dict[int, Dictionary] = {}
        self._items = 0
        self._walk([called(root) for root in roots])

    def names_of(self, table: Dictionary, *, followed: bool = False) -> frozenset[str] | None:
        """The names of items that can be read, None for all; where `followed`, of those there are, from which others
        can be reached."""
        if table.kind in ("items", "all attributes"):
            return None
        if table.kind == "globals":
            return frozenset(table.globals)
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
            if id(holder) not in self._callable_classes:
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

    def _walk(self, roots: Iterable[Place]) -> None:
        pending = deque(roots)
        while pending:
            while pending:
                place = pending.popleft()
                if id(place.value) not in self.places and not is_opaque(place.value):
                    if len(self.places) >= MOST_OBJECTS:
                        self._cannot(f"more than {MOST_OBJECTS} objects can be reached")
                        return
                    self.places[id(place.value)] = place
                    pending.extend(self._visit(place))
            found = (place for table in list(self.dictionaries) for place in self._followed(table))
            # Operators are called as `torch.ops.library.name`.
            operators = (called(op) for name, op in OPDEFS.items() if name.rpartition("::")[2] in self._names)
            for place in (*found, *operators):
                if id(place.value) not in self.places and not is_opaque(place.value):
                    pending.append(place)
        if self.places.keys() & _DATES and self._names & _TODAY:
            self._cannot("datetime, which gives something else each time")

    def _followed(self, table: Dictionary) -> Iterator[Place]:
        """The values in a dictionary from which others can be reached."""
        if not dict.__len__(table.items):
            return
        for key, value in items_of(table.items, self.names_of(table, followed=True)).items():
            if id(value) in self.places or is_opaque(value):
                continue
            if table.kind == "globals":
                known = isinstance(value, FunctionType | type | ModuleType)
                yield called(value) if known else Place(value, f"{table.place.key}.{key}")
            elif (
                table.kind != "library"
                or isinstance(value, ModuleType)
                or id(value) in _FOLLOWED
                or runs_users_code(value)
            ):
                yield table.place.part(value, key, item=table.kind == "items")

    def _visit(self, place: Place) -> Iterator[Place]:
        """Note what is to be watched of a value, and yield what can be reached from it."""
        value, kind = place.value, type(place.value)
        if (reason := _REFUSED.get(id(value)) or _HELD.get(id(value))) is not None:
            self._cannot(reason)
        elif isinstance(value, Tensor):
            self.tensors.append(value)
            self._add_attributes(place)
        elif isinstance(value, nn.Module):
            self.modules.append(value)
            self._add_attributes(place)
            self._add_class(kind)
            for name, buffer in value._buffers.items():
                if buffer is not None and vars(buffer):
                    self._add(vars(buffer), place.part(buffer, name), "attributes")
            yield from (place.part(one, name) for name, one in (*value._parameters.items(), *value._modules.items()))
        elif isinstance(value, FunctionType):
            yield from self._of_function(place, value)
        elif isinstance(value, _WRAPPERS):
            yield from self._of_wrapper(place)
        elif isinstance(value, ModuleType):
            library = is_library(value.__name__)
            self._add(vars(value), place, "library" if library else "attributes", None if library else value)
        elif isinstance(value, type):
            self._callable_classes.update(map(id, value.__mro__))
            self._add_class(value)
            self._add_class(kind)  # a metaclass may have properties
            if issubclass(value, enum.Enum) and not is_library(value.__module__):
                yield from (place.part(member, member.name) for member in value)
        elif isinstance(value, _CONTAINERS):
            yield from self._of_container(place)
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, ContextVar):
            self.variables.append(value)
            yield place._replace(value=value.get(None))
        elif isinstance(value, MappingProxyType):
            yield place._replace(value=gc.get_referents(value)[0])
        elif isinstance(value, _GeneratorContextManager):  # as a decorator it makes a new generator for each call
            if not hasattr(value, "func"):  # it was entered
                self._refuse_source(value.gen, type(value.gen))
            yield from (called(one) for one in (getattr(value, "func", None), *vars(value).get("args", ())))
            yield place.part(vars(value).get("kwds"), "kwds")
        elif isinstance(value, CustomOpDef):
            self.attributes += [(place, "_setup_context_fn"), (place, "_backward_fn")]
            functions = value._init_fn, value._setup_context_fn, value._backward_fn, *value._backend_fns.values()
            yield from map(called, functions)
        elif isinstance(value, (*_GENERATORS, Iterator)):
            self._refuse_source(value, kind)
        else:
            if isinstance(value, FunctionCache):
                self.caches.append(value)
            yield place._replace(value=attribute_of(value, "__wrapped__"))
            yield from self._of_object(place, kind)

    def _add(self, items: dict[Any, Any], place: Place, kind: Any, holder: Any = None) -> None:
        self.dictionaries.append(Dictionary(items, place, kind, holder))

    def _add_attributes(self, place: Place) -> None:
        """Note the attributes that an object has or may get, and that all may be exchanged at once."""
        self._add(vars(place.value), place, "attributes", place.value)
        self.attributes.append((place, "__dict__"))

    def _of_wrapper(self, place: Place) -> Iterator[Place]:
        value = place.value
        if isinstance(value, MethodType):
            yield from (called(value)._replace(value=value.__self__), called(value.__func__))
        elif isinstance(value, partial):
            self._add(value.keywords, place.part(value.keywords, "keywords"), "items")
            yield from (called(value.func), *(place.part(one, f"args[{i}]") for i, one in enumerate(value.args)))
        else:
            names = {property: "fget", cached_property: "func"}
            name = next((name for kind, name in names.items() if isinstance(value, kind)), "__func__")
            yield called(getattr(value, name))

    def _of_container(self, place: Place) -> Iterator[Place]:
        value = place.value
        if not is_library(type(value).__module__):  # it may have attributes and methods
            if own_dictionary(value) is not None:
                self._add_attributes(place)
            yield from self._of_kind(place)
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            self._cannot("an array of objects, whose changes cannot be detected")
        if not isinstance(value, tuple | frozenset):
            self._count(value.reshape(-1) if isinstance(value, np.ndarray) else value)
            if isinstance(value, dict):
                self._add(value, place, "items")
                return
            self.containers.append(place)
        if not isinstance(value, np.ndarray | bytearray):
            of_python = next(kind for kind in _CONTAINERS if isinstance(value, kind))  # not as a user's class walks
            items = enumerate(of_python.__iter__(value))
            yield from (place.part(one, i, item=True) for i, one in items if not is_opaque(one))

    def _refuse_source(self, value: Any, kind: type) -> None:
        """Refuse what gives another value each time it is read."""
        if not isinstance(value, _GENERATORS):
            self._cannot(f"a {kind.__name__}, which gives another value each time")
        elif value is not getattr(random, "_inst", None):  # the recorder finds out whether that is used
            self._cannot(f"a {kind.__module__}.{kind.__name__}, which gives other numbers each time")

    def _of_function(self, place: Place, function: FunctionType) -> Iterator[Place]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            variable = Place(cell, name, of=f" (a variable of {function.__name__})")
            self.attributes.append((variable, "cell_contents"))
            yield variable._replace(value=contents_of(cell))
        if is_of_library(function):
            return
        self.attributes += [(place, name) for name in ("__code__", "__defaults__", "__kwdefaults__")]
        yield from (place.part(one, f"__defaults__[{i}]") for i, one in enumerate(function.__defaults__ or ()))
        yield place.part(function.__kwdefaults__, "__kwdefaults__")
        names, known = names_in(function.__code__), function.__globals__
        self._names |= names.attributes
        self._reflective |= names.reflective
        self._add(vars(function), place, "attributes")
        if (table := self._globals.get(id(known))) is None:
            module = Place(known, str(function.__module__))
            self.dictionaries.append(table := Dictionary(known, module, "globals"))
            self._globals[id(known)] = table
        table.globals.update(names.globals)
        if names.reflective:
            self._names |= names.texts
            table.globals.update(names.texts)
        if not _ENVIRONMENT.isdisjoint(names.globals | names.attributes):
            yield Place(os.environ, "os.environ")
        within = [""]
        package = known.get("__package__") or ""
        while package:  # a relative import names a module of this package or of one above
            within.append(package)
            package = package.rpartition(".")[0]
        for name in names.imports:
            modules = (sys.modules.get(f"{package}.{name}".strip(".")) for package in within)
            yield from (called(module) for module in modules if module is not None)

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
            library = is_library(base.__module__)
            if not library or issubclass(base, nn.Module):
                self._add(attributes_of(base), called(base), "library" if library else "attributes", base)

    def _of_object(self, place: Place, kind: type) -> Iterator[Place]:
        value, library = place.value, is_library(kind.__module__)
        attributes = own_dictionary(value)
        if library and kind.__module__.split(".")[0] == "threadcast":
            return
        if hides_values(value):
            self._cannot(f"a {kind.__name__}, whose changes cannot be detected")
            return
        if isinstance(value, operator.attrgetter | operator.methodcaller):
            self._names.update(part for name in value.__reduce__()[1] for part in str(name).split("."))
        if isinstance(value, types.BuiltinFunctionType):  # a method of an object too, as a list's `append`
            yield called(value.__self__)
        if attributes is not None:
            if library and not isinstance(value, _PLAIN_OBJECTS):
                self._count(attributes)
                self._add(attributes, place, "all attributes")
            else:
                self._add_attributes(place)
        if not library:
            yield from self._of_kind(place)
        elif attributes is None:
            yield from self._of_slots(place)

    def _of_kind(self, place: Place) -> Iterator[Place]:
        """As `_visit`, of an object's class, which is none of a library, and of its slots."""
        self._add_class(type(place.value))
        self.attributes.append((place, "__class__"))
        yield from self._of_slots(place)

    def _of_slots(self, place: Place) -> Iterator[Place]:
        for name in slots_of(type(place.value)):
            self.attributes.append((place, name))
            yield place.part(attribute_of(place.value, name), name)

    def _count(self, items: Any) -> None:
        self._items += len(items)
        if self._items > MOST:
            self._cannot(f"more than {MOST} values in lists, dictionaries and arrays")

    def _cannot(self, reason: str) -> None:
        self.unwatchable = self.unwatchable or reason


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
