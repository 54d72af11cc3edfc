"""Which code is of a library (PyTorch, NumPy, the standard library), and what it reads of users' classes."""

from __future__ import annotations

import inspect
import os
import pathlib
import sys
import sysconfig
from functools import lru_cache, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch.utils import _pytree as pytree

from threadcast.capture.guards.code_names import names_in

_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "threadcast", "tqdm", "jinja2"} - {"__main__"}
"""Bars of tqdm show how far a loop is by the clock, and templates of Jinja (of which torch_geometric makes its modules)
are texts: neither changes a number."""
_LOOKED_INTO = ("threadcast.networks",)
_SITE = frozenset(("site-packages", "dist-packages"))
"""Names of the folders of installed packages, which may lie within the standard library's."""


def is_library(module: str | None) -> bool:
    """Whether a module of this name is of PyTorch, NumPy, the standard library or threadcast."""
    name = module or ""
    top = name.split(".")[0]
    if top not in _LIBRARIES or name.startswith(_LOOKED_INTO):
        return False
    return top not in sys.stdlib_module_names or not _lies_elsewhere(*_places_of(sys.modules.get(top)))


def is_users_own(module: str | None) -> bool:
    """Whether a module of this name is neither a library's nor part of an installed package."""
    return not is_library(module) and not _are_installed(*_places_of(sys.modules.get((module or "").split(".")[0])))


def is_of_library(function: FunctionType) -> bool:
    """Whether a function is a library's own. One that took a library's name, by `functools.wraps`, is not."""
    return is_library(function.__module__) and is_library(function.__globals__.get("__name__"))


def runs_users_code(value: object) -> bool:
    """Whether calling a value that was found in a library's module or class runs a user's own code."""
    if isinstance(value, FunctionType):
        return is_users_own(value.__module__) or is_users_own(value.__globals__.get("__name__"))
    if isinstance(value, staticmethod | classmethod):
        return runs_users_code(value.__func__)
    if isinstance(value, partial):
        return any(map(runs_users_code, (value.func, *value.args, *value.keywords.values())))
    if isinstance(value, MethodType):  # of an object or, as `Function.apply`, of a class
        kind = value.__self__ if isinstance(value.__self__, type) else type(value.__self__)
        return runs_users_code(value.__func__) or is_users_own(kind.__module__)
    kind = type(value)
    return is_users_own(kind.__module__) and isinstance(inspect.getattr_static(kind, "__call__", None), FunctionType)


def attributes_read_by(kind: type) -> frozenset[str]:
    """The attributes that the code of a class names, without special methods."""
    found = set[str]()
    for value in vars(kind).values():
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        value = value.fget if isinstance(value, property) else value
        function = inspect.unwrap(value) if callable(value) else None
        if isinstance(function, FunctionType):
            found |= names_in(function.__code__).attributes
    return frozenset(name for name in found if not name.startswith("__"))


def _places_of(module: ModuleType | None) -> tuple[str, ...]:
    """The file of a module, or the folders of a package without one; none where it is part of the interpreter."""
    file = getattr(module, "__file__", None)
    return (file,) if file else tuple(getattr(module, "__path__", ()))


@lru_cache(maxsize=1024)
def _lies_elsewhere(*places: str) -> bool:
    """Whether a module with a name of the standard library lies elsewhere: then it is the user's own."""
    folders = (sysconfig.get_paths()["stdlib"], os.path.dirname(os.__file__), sysconfig.get_config_var("DESTSHARED"))
    standard = {os.path.realpath(folder) for folder in folders if folder}
    return _are_installed(*places) or (bool(places) and standard.isdisjoint(map(str, _folders_above(places))))


@lru_cache(maxsize=1024)
def _are_installed(*places: str) -> bool:
    return any(folder.name in _SITE for folder in _folders_above(places))


def _folders_above(places: tuple[str, ...]) -> list[pathlib.Path]:
    return [folder for place in places for folder in pathlib.Path(os.path.realpath(place)).parents]


def own_classes(arguments: Any) -> list[type]:
    """The classes of nested arguments, and of what they hold, that are of no library; each once."""
    found: dict[type, None] = {}

    def note(value: Any) -> bool:
        found[type(value)] = None
        return False

    pytree.tree_flatten(arguments, is_leaf=note)
    return [kind for kind in found if not is_library(kind.__module__)]
