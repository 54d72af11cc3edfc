"""The name by which a user knows a value that code can reach: `Net.info["steps"]`, not "a dictionary"."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import nn

from threadcast.capture.guards.code_names import names_in
from threadcast.capture.guards.libraries import is_library, is_of_library
from threadcast.capture.guards.objects import attributes_of, contents_of, is_opaque, items_of, own_dictionary

_MOST = 50_000
"""Most objects that are looked at for a name. A convention."""
_SEQUENCES: tuple[Any, ...] = (list, tuple, deque)
_PLACES = ("_modules", "_parameters", "_buffers")


class _Named(NamedTuple):
    """An object, its name, and what the name is one of (" (a variable of loss)"); empty where the name says it."""

    value: Any
    name: str
    of: str = ""

    def part(self, value: Any, how: str) -> _Named:
        """A part of the object, which code reads in this way. What is ours has no name."""
        ours = str(type(self.value).__module__).startswith("threadcast.runtime.")
        return _Named(value, _called(value)) if ours else _Named(value, f"{self.name}{how}", self.of)


def name_of(roots: Iterable[Any], holder: Any, key: Any = None) -> str | None:
    """The shortest name of what `holder` holds by `key`, where that can be reached from `roots` (functions, modules).

    `holder` is a list, a set or a variable of a closure, itself what is named, an object whose attribute `key` is, or a
    dictionary: of items, of an object's attributes, or of global variables. None where no name is found.
    """
    found = deque(_Named(root, _called(root)) for root in roots)
    seen: set[int] = set()
    while found and len(seen) < _MOST:
        one = found.popleft()
        if id(one.value) in seen or is_opaque(one.value) or _is_of_library(one.value):
            continue
        seen.add(id(one.value))
        if one.value is holder or any(held is holder for held in _dictionaries_of(one.value)):
            how = "" if key is None else _item(key) if one.value is holder and isinstance(holder, dict) else f".{key}"
            return f"{one.name}{how}{one.of}"
        if isinstance(one.value, FunctionType) and one.value.__globals__ is holder:
            return f"{one.value.__module__}.{key}"
        found.extend(_parts(one))
    return None


def _dictionaries_of(value: Any) -> Iterator[Any]:
    """The dictionaries in which an object holds its attributes, and a module its tensors and layers."""
    yield attributes_of(value) if isinstance(value, type) else own_dictionary(value)
    if isinstance(value, nn.Module):
        yield from map(vars(value).get, _PLACES)


def _item(key: Any) -> str:
    return f"[{reprlib.repr(key)}]"  # short, and also where a user's own class cannot say what it is


def _is_of_library(value: Any) -> bool:
    return isinstance(value, ModuleType | type) and is_library(
        value.__module__ if isinstance(value, type) else value.__name__
    )


def _called(value: Any) -> str:
    """How a user calls a root: by the name of a function or class, else of its class."""
    while isinstance(value, MethodType):
        value = value.__self__
    name = value.__name__ if isinstance(value, FunctionType | type | ModuleType) else type(value).__name__
    return str(name)


def _parts(one: _Named) -> Iterator[_Named]:
    """What can be reached from an object in one step, with names."""
    value = one.value
    if isinstance(value, FunctionType):
        yield from _parts_of_function(one)
    elif isinstance(value, MethodType):
        yield from (_Named(value.__self__, _called(value)), _Named(value.__func__, value.__func__.__name__))
    elif isinstance(value, partial):
        yield from (_Named(value.func, _called(value.func)), one.part(value.keywords, ".keywords"))
        yield from (one.part(given, f".args[{i}]") for i, given in enumerate(value.args))
    elif isinstance(value, dict):
        yield from (one.part(item, _item(key)) for key, item in items_of(value, None).items())
    elif (kind := next((kind for kind in _SEQUENCES if isinstance(value, kind)), None)) is not None:
        yield from (one.part(item, _item(i)) for i, item in enumerate(kind.__iter__(value)))
    if isinstance(value, type):
        yield from (one.part(item, f".{name}") for name, item in attributes_of(value).items())
    elif (attributes := own_dictionary(value)) is not None and not isinstance(value, type):
        for name, item in attributes.items():
            if isinstance(value, nn.Module) and name in _PLACES:
                yield from (one.part(part, f".{key}") for key, part in item.items())
            else:
                yield one.part(item, f".{name}")
    if not isinstance(value, FunctionType | MethodType | type) and not is_library(type(value).__module__):
        yield from (_Named(base, base.__name__) for base in type(value).__mro__ if not is_library(base.__module__))


def _parts_of_function(one: _Named) -> Iterator[_Named]:
    function = one.value
    of = f" (a variable of {function.__name__})"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield from (_Named(cell, name, of), _Named(contents_of(cell), name, of))
    if is_of_library(function):
        return
    yield from (one.part(value, "'s defaults") for value in (function.__defaults__, function.__kwdefaults__))
    for name, value in items_of(function.__globals__, names_in(function.__code__).globals).items():
        called = isinstance(value, FunctionType | type | ModuleType)
        yield _Named(value, _called(value) if called else f"{function.__module__}.{name}")
