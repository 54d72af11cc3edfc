"""What functions can reach besides their arguments: globals, closures, defaults, bound objects, and their attributes.

The walk follows code and objects together. Of an object it includes only the attributes whose names occur in code that
can be reached: a trainer's step counter does not matter to a loss that never reads it. Code and classes of libraries
(PyTorch, NumPy, the standard library) are not followed, but functions that these have wrapped are.
"""

from __future__ import annotations

import argparse
import builtins
import datetime
import enum
import gc
import operator
import os
import random
import sys
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

from threadcast.capture.guards.code_names import names_in
from threadcast.capture.guards.libraries import (
    is_library,
    is_of_library,
    runs_users_code,
)
from threadcast.capture.guards.objects import (
    attribute_of,
    attributes_of,
    contents_of,
    hides_values,
    is_opaque,
    items_of,
    own_dictionary,
    slots_of,
)
from threadcast.capture.guards.places import Dictionary, Place, called
from threadcast.capture.guards.printing import GENERATORS, READS
from threadcast.capture.guards.read_names import ReadNames

MOST = 20_000
"""Most items of lists, dictionaries, sets and arrays that are watched: more would take longer than a small step."""
MOST_OBJECTS = 500_000
"""Most objects that are looked at: a callable may reach what holds all of a program. A convention."""

_PLAIN_OBJECTS = (SimpleNamespace, argparse.Namespace)
"""Classes of the standard library whose objects only hold attributes; these are watched by name."""
_ENVIRONMENT = {"environ", "environb", "getenv"}
_PLANNED = (torch.get_num_threads, torch.get_num_interop_threads)
_RUN_TEXTS = frozenset(("eval", "exec", "compile"))
_REFUSED = (
    {id(getattr(owner, name)): f"{name}, which {does}, by a name of its own" for owner, name, does in READS}
    | {id(getattr(builtins, name)): f"{name}, which runs a text as code" for name in _RUN_TEXTS}
    | {id(function): f"torch.{function.__name__}, which plans change" for function in _PLANNED}
    | {id(torch.default_generator): "torch.default_generator, whose seed may be set"}
    | {id(torch.set_rng_state): "torch.set_rng_state by a name of its own"}
)
"""By id, what gives what is not looked at, in words. The recorder notices calls by way of a module (`time.time()`)."""
_DATES = {id(datetime.date), id(datetime.datetime)}
_TODAY = {"now", "utcnow", "today"}
_FOLLOWED = _DATES | {id(one) for one in (*_PLANNED, *(generator for _, generator in GENERATORS))}
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_WRAPPERS = (MethodType, partial, property, cached_property, staticmethod, classmethod)
_CONTAINERS: tuple[Any, ...] = (dict, tuple, frozenset, list, set, deque, np.ndarray, bytearray)


class Reachable:
    """The values that can be reached from `roots`.

    `attributes` are owners, each with the name of an
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
        self.read = ReadNames()
        """Which items of `dictionaries` can be read."""
        self._classes: set[int] = set()
        self._globals: dict[int, Dictionary] = {}
        self._items = 0
        self._walk([called(root) for root in roots])

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
            operators = (called(op) for name, op in OPDEFS.items() if name.rpartition("::")[2] in self.read.names)
            for place in (*found, *operators):
                if id(place.value) not in self.places and not is_opaque(place.value):
                    pending.append(place)
        if self.places.keys() & _DATES and self.read.names & _TODAY:
            self._cannot("datetime, which gives something else each time")

    def _followed(self, table: Dictionary) -> Iterator[Place]:
        """The values in a dictionary from which others can be reached."""
        if not dict.__len__(table.items):
            return
        for key, value in items_of(table.items, self.read.of(table, followed=True)).items():
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
        if (reason := _REFUSED.get(id(value))) is not None:
            self._cannot(reason)
        elif isinstance(value, Tensor):
            self.tensors.append(value)
            self._add_attributes(place)
        elif isinstance(value, nn.Module):
            if not self.modules:
                self._add(vars(nn.functional), called(nn.functional), "library", nn.functional)
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
            self.read.callable_classes.update(map(id, value.__mro__))
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
                self._cannot(f"a {type(value.gen).__name__}, which gives another value each time")
            yield from (called(one) for one in (getattr(value, "func", None), *vars(value).get("args", ())))
            yield place.part(vars(value).get("kwds"), "kwds")
        elif isinstance(value, CustomOpDef):
            self.attributes += [(place, "_setup_context_fn"), (place, "_backward_fn")]
            functions = value._init_fn, value._setup_context_fn, value._backward_fn, *value._backend_fns.values()
            yield from map(called, functions)
        elif isinstance(value, (*_GENERATORS, Iterator)):
            self._cannot(f"a {kind.__name__}, which gives another value each time")
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
        named = names.globals - known.keys()
        if texts := _RUN_TEXTS & (named | (names.attributes if "builtins" in names.globals else set())):
            self._cannot(_REFUSED[id(getattr(builtins, min(texts)))])
        self.read.add(names)
        self._add(vars(function), place, "attributes")
        if (table := self._globals.get(id(known))) is None:
            module = Place(known, str(function.__module__))
            self.dictionaries.append(table := Dictionary(known, module, "globals"))
            self._globals[id(known)] = table
        table.globals.update(names.globals)
        if names.reflective:
            table.globals.update(names.texts)
        if "default_generator" in names.globals | names.attributes:
            self._cannot(_REFUSED[id(torch.default_generator)])
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
        for base in kind.__mro__ if self.read.add_class(kind) else ():
            library = is_library(base.__module__)
            if id(base) not in self._classes and (not library or issubclass(base, nn.Module)):
                self._add(attributes_of(base), called(base), "library" if library else "attributes", base)
            self._classes.add(id(base))

    def _of_object(self, place: Place, kind: type) -> Iterator[Place]:
        value, library = place.value, is_library(kind.__module__)
        attributes = own_dictionary(value)
        if library and kind.__module__.split(".")[0] == "threadcast":
            return
        if hides_values(value):
            self._cannot(f"a {kind.__name__}, whose changes cannot be detected")
            return
        if isinstance(value, operator.attrgetter | operator.methodcaller):
            self.read.name(part for name in value.__reduce__()[1] for part in str(name).split("."))
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
