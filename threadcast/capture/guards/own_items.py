"""What objects hold themselves: the items of dictionaries, attributes, variables of closures."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator
from types import CellType, MemberDescriptorType
from typing import Any


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
