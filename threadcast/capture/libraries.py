"""Which code is of a library (PyTorch, NumPy, the standard library), and what it reads of objects of other classes."""

from __future__ import annotations

import inspect
import os
import pathlib
import sys
import sysconfig
from functools import lru_cache
from types import FunctionType, ModuleType

from threadcast.capture.code_names import names_in

_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "threadcast"} - {"__main__"}
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


def is_of_library(function: FunctionType) -> bool:
    """Whether a function is a library's own. One that took a library's name, by `functools.wraps`, is not."""
    return is_library(function.__module__) and is_library(function.__globals__.get("__name__"))


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
    standard = {os.path.realpath(folder) for folder in (sysconfig.get_paths()["stdlib"], os.path.dirname(os.__file__))}
    above = [folder for place in places for folder in pathlib.Path(os.path.realpath(place)).parents]
    installed = any(folder.name in _SITE for folder in above)
    return bool(places) and (installed or standard.isdisjoint(map(str, above)))
