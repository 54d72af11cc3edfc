"""What objects hold themselves, and which are not looked into, as they cannot change, or do not matter."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import gc
import inspect
import logging
import operator
import pathlib
import re
import threading
import types
from collections import OrderedDict
from collections.abc import Iterator
from types import CellType, MemberDescriptorType
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload, OpOverloadPacket

from threadcast.capture.guards.libraries import is_library


def attributes_of(kind: type) -> dict[str, Any]:
    """The dictionary of a class's own attributes, behind the read-only view that `vars` gives."""
    (table,) = gc.get_referents(vars(kind))
    found: dict[str, Any] = table
    return found


def items_of(table: dict[Any, Any], names: frozenset[str] | None) -> dict[Any, Any]:
    """The items that a dictionary holds, those of `names` only; a subclass of `dict` may give others for its keys."""
    if names is None:
        keys = OrderedDict.keys(table) if isinstance(table, OrderedDict) else dict.keys(table)  # in their order
        return {name: dict.__getitem__(table, name) for name in keys}
    if len(table) < len(names):
        return {name: value for name, value in dict.items(table) if name in names}
    return {name: dict.__getitem__(table, name) for name in names & dict.keys(table)}


def contents_of(cell: CellType) -> Any:
    """What a variable of a closure holds; None where it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def attribute_of(value: Any, name: str, default: Any = None) -> Any:
    """An attribute, or `default` where there is none: a user's own `__getattr__` may raise any error for that."""
    try:
        return getattr(value, name, default)
    except Exception:  # noqa: BLE001 - as where it reads a dictionary, which raises KeyError
        return default


def own_dictionary(value: Any) -> dict[str, Any] | None:
    """Where an object holds its attributes; None where there is none, or `__dict__` gives another one each time."""
    found = attribute_of(value, "__dict__")
    return found if isinstance(found, dict) and found is attribute_of(value, "__dict__") else None


def slots_of(kind: type) -> Iterator[str]:
    """The names of attributes that objects of this class hold in slots."""
    for base in kind.__mro__:
        if "__slots__" not in vars(base):
            continue
        for name, slot in vars(base).items():  # the names in `__slots__` may lack their class's, as `__gain` does
            if isinstance(slot, MemberDescriptorType):
                yield name


CONSTANTS = (bool, int, float, complex, str, bytes, type(None))
"""Values that do not change and are compared by value."""
_OPAQUE = (
    logging.Filterer, torch.dtype, torch.device, torch.layout, torch.memory_format, np.generic,
    np.dtype, range, slice, inspect.Signature, OpOverload, OpOverloadPacket,
)  # fmt: skip
_UNCHANGING = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType,
    types.GenericAlias, types.UnionType, types.EllipsisType, types.NotImplementedType, re.Pattern, re.Match,
    operator.attrgetter, operator.itemgetter, operator.methodcaller, datetime.date, datetime.time, datetime.timedelta,
    datetime.tzinfo, decimal.Decimal, fractions.Fraction, pathlib.PurePath, CellType, type(inspect.Traceback.lineno),
)  # fmt: skip
"""Types without attributes that code could set, besides those that are not looked at."""
_WITHOUT_STATE = {"torch", "numpy", "typing", "_abc", "_thread", "threading"}
"""Libraries whose objects without attributes, as operators, types and locks, give code no values of their own."""
_HIDDEN = {"_ctypes", "ctypes", "array", "mmap"}
"""Modules whose objects hold values in memory that no attribute shows."""


def is_opaque(value: Any) -> bool:
    """Whether a value is a constant, or one that the walk does not look into.

    Numbers, texts and members of enumerations of the user's own classes are looked into: they may have attributes.
    """
    if type(value) in CONSTANTS:
        return True
    if isinstance(value, (*CONSTANTS, enum.Enum)):
        return is_library(type(value).__module__)
    return isinstance(value, _OPAQUE)


def is_constant(value: Any) -> bool:
    """Whether a value is a constant, or a tuple of nothing else."""
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return isinstance(value, CONSTANTS) and is_opaque(value)


def hides_values(value: Any) -> bool:
    """Whether an object may have values that no attribute shows, so that they can change unnoticed."""
    kind = type(value)
    if isinstance(value, threading.local) or any(base.__module__ in _HIDDEN for base in kind.__mro__):
        return True
    if own_dictionary(value) is not None or isinstance(value, _UNCHANGING) or kind is object:
        return False
    return kind.__module__.split(".")[0] not in _WITHOUT_STATE and not any("__slots__" in vars(b) for b in kind.__mro__)
